package entries

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/inject"
)

// storedTimeout bounds the question which SidecarSets are stored.
const storedTimeout = 2 * time.Second

// expire finds the provisional entries that go since there is no SidecarSet for them.
// Those of stored ones go when their own entries are there.
func (l *leader) expire(ctx context.Context, v *view) {
	l.provisional.Observe(v.layout, v.now)
	l.webhooks.m.provisional.Set(float64(l.provisional.Len()))
	due, again := l.provisional.Due(v.wanted, v.now)
	if again > 0 {
		v.wakeAfter(again)
	}
	if len(due) > 0 && l.knowsAllStored(ctx, v) {
		l.provisional.Expire(due, v.now)
		l.webhooks.m.unvouched.Add(float64(len(due)))
	}
}

// wakeAfter has the next pass begin after a time at the latest.
func (v *view) wakeAfter(d time.Duration) {
	if v.due == 0 || d < v.due {
		v.due = max(d, time.Millisecond)
	}
}

// knowsAllStored says whether the snapshot holds every SidecarSet that is stored, by
// a live list. One pass asks once.
func (l *leader) knowsAllStored(ctx context.Context, v *view) bool {
	if v.complete == nil {
		err := l.missesNothing(ctx, v)
		if err != nil {
			log.FromContext(ctx).V(1).Info("Could not tell yet whether all stored SidecarSets are known", "reason", err.Error())
			v.wakeAfter(soon)
		}
		v.complete = new(err == nil)
	}
	return *v.complete
}

func (l *leader) missesNothing(ctx context.Context, v *view) error {
	ctx, cancel := context.WithTimeout(ctx, storedTimeout)
	defer cancel()
	list, err := listSidecarSets(ctx, l.live)
	if err != nil {
		return fmt.Errorf("listing SidecarSets: %w", err)
	}
	known := make(map[string]*inject.Program, len(v.programs))
	for _, program := range v.programs {
		known[program.Name()] = program
	}
	for i := range list.Items {
		stored := &list.Items[i]
		program := known[stored.Name]
		if program == nil && l.sets.Problem(stored.Name) != nil {
			continue // it cannot be used, whatever it selects
		}
		if program == nil || program.Set.UID != stored.UID || program.Set.Generation < stored.Generation {
			return fmt.Errorf("SidecarSet %s is stored in a version that is not known yet", stored.Name)
		}
	}
	return nil
}
