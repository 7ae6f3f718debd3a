package entries

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// memory has the values that plan keeps from one pass to the next.
type memory struct {
	windows     entryplan.Windows
	provisional entryplan.ProvisionalRoom
	// anew is true if this leader has recorded entryplan.RecentAny, because the leader
	// before it may have been of a version that records no names.
	anew           bool
	definitionSeen time.Time // when the CustomResourceDefinition was last found
	settled        time.Time // when plan last checked whether entries may settle or be removed
}

// plan decides how the objects have to change.
func (l *leader) plan(ctx context.Context, v *view) (entryplan.Plan, error) {
	going, err := l.uninstalling(ctx, v)
	if err != nil {
		return entryplan.Plan{}, err
	}
	if going {
		return entryplan.Plan{Changes: entryplan.RemoveAll(v.layout)}, nil
	}
	v.problem = l.record(ctx, v)
	l.place(v) // entries that are missing now were removed by another program
	complete := sync.OnceValue(func() bool {
		err := l.missesNothing(ctx, v)
		if err != nil {
			log.FromContext(ctx).V(1).Info("Could not tell yet whether all stored SidecarSets are known", "reason", err.Error())
			v.wakeAfter(soon)
		}
		return err == nil
	})
	l.expire(v, complete)
	state := l.state(v)
	plan := entryplan.Next(state, v.settings)
	if wait := l.memory.settled.Add(settlePause).Sub(v.now); plan.Incomplete && wait > 0 {
		v.wakeAfter(wait)
	} else if plan.Incomplete {
		l.memory.settled = v.now
		if state.Complete = complete(); state.Complete {
			plan = entryplan.Next(state, v.settings)
		}
	}
	v.overflow = plan.Overflow
	if plan.Again > 0 {
		v.wakeAfter(plan.Again)
	}
	return plan, nil
}

// record records the names of SidecarSets before apply writes their entries, unless they are
// recorded already. A claim whose name is not recorded waits.
func (l *leader) record(ctx context.Context, v *view) error {
	unrecorded := l.promises.unrecorded()
	names := l.memory.windows.Unrecorded(v.layout, unrecorded, v.now, l.webhooks.options.AdmissionWindow)
	if !l.memory.anew {
		names[entryplan.RecentAny] = ""
	}
	if len(names) > 0 {
		if recorded, err := l.recordNames(ctx, v, names); !recorded {
			maps.DeleteFunc(unrecorded, func(name, _ string) bool { _, ok := names[name]; return ok })
			l.promises.recorded(unrecorded)
			return err
		}
		l.memory.anew = true
	}
	l.promises.recorded(unrecorded)
	return nil
}

// recordNames records names. It returns false if that failed.
func (l *leader) recordNames(ctx context.Context, v *view, names map[string]string) (recorded bool, err error) {
	layout, err := l.webhooks.store.recordable(ctx)
	if err != nil {
		return false, err
	}
	if change, ok := entryplan.Record(layout, names, v.settings); ok {
		if !l.paces[change.Index].Allow() {
			v.wakeAfter(soon)
			return false, nil
		}
		stale, err := l.webhooks.write(ctx, change)
		if stale {
			l.wake()
		}
		if stale || err != nil {
			return false, err
		}
	}
	v.layout = l.webhooks.store.current()
	return true, nil
}

// uninstalling reports whether the operator is being uninstalled: its Namespace is being
// deleted, or the CustomResourceDefinition is deleted with all SidecarSets. If the operator's
// entries stayed, API servers would refuse Pods, because no replica could answer.
func (l *leader) uninstalling(ctx context.Context, v *view) (bool, error) {
	settings, err := l.webhooks.settings(ctx)
	if errors.Is(err, errUninstalling) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	v.settings = settings
	if len(v.catalog.Programs()) == 0 && v.layout.Empty() {
		return false, nil
	}
	return l.definitionIsGone(ctx, v)
}

// definitionIsGone reports whether SidecarSets have no CustomResourceDefinition. The
// snapshot cannot tell: an API server may end the watch of SidecarSets before it has
// sent all deletions, and the last SidecarSets that the snapshot holds then stay in it.
func (l *leader) definitionIsGone(ctx context.Context, v *view) (bool, error) {
	stored := len(v.catalog.Programs()) > 0
	if stored && v.now.Sub(l.memory.definitionSeen) < definitionRecheck {
		return false, nil
	}
	crd := snapshot.Metadata(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	switch err := l.live.Get(ctx, client.ObjectKey{Name: appsv1beta1.Resource.GroupResource().String()}, crd); {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("reading the CustomResourceDefinition: %w", err)
	}
	l.memory.definitionSeen = v.now
	return crd.DeletionTimestamp != nil && !stored, nil
}

// batchesInWindow is how often, while a window passes, entries leave the fresh path or are
// removed. Each is due at another moment, and in another object. If a pass wrote an object
// as soon as one of its entries is due, the authors of new SidecarSets would wait for these
// writes, which are not urgent.
const batchesInWindow = 8

// settlePause is the shortest time between two passes in which entries settle or are
// removed. Such a pass takes longer than others, because it first checks the snapshot. No
// user waits for these entries, but the authors of new SidecarSets wait for the end of a
// pass.
const settlePause = time.Second

func (l *leader) state(v *view) entryplan.State {
	l.memory.windows.Observe(v.layout, v.wanted, v.now)
	window := l.webhooks.options.AdmissionWindow + l.webhooks.options.Trust + l.webhooks.options.Trust/2
	return entryplan.State{
		Layout:   v.layout,
		Wanted:   v.wanted,
		Claimed:  l.promises.claimed(),
		Windows:  l.memory.windows,
		Now:      l.began.Add(v.now.Sub(l.began).Truncate(window / batchesInWindow)),
		Window:   window,
		Refused:  l.refused.observe(v.wanted, v.now),
		CanServe: v.served,
		Expired:  l.memory.provisional.Expired(),
		Room:     l.memory.provisional.Room(),
	}
}

// storedTimeout is the timeout of a check of the snapshot.
const storedTimeout = 2 * time.Second

// expire finds the provisional entries to remove because no SidecarSet is stored for
// them. Those of stored SidecarSets are removed when their own entries are in force.
func (l *leader) expire(v *view, complete func() bool) {
	provisional := &l.memory.provisional
	provisional.Observe(v.layout, v.now)
	l.webhooks.m.provisional.Set(float64(provisional.Len()))
	due, again := provisional.Due(v.wanted, v.now)
	if again > 0 {
		v.wakeAfter(again)
	}
	if len(due) > 0 && complete() {
		provisional.Expire(due, v.now)
		l.webhooks.m.expired.Add(float64(len(due)))
	}
}

// missesNothing returns nil if a check, which begins now, shows that the snapshot of this
// pass holds every stored SidecarSet.
func (l *leader) missesNothing(ctx context.Context, v *view) error {
	ctx, cancel := context.WithTimeout(ctx, storedTimeout)
	defer cancel()
	if err := l.webhooks.options.CatchUp(ctx); err != nil {
		return err
	}
	for _, now := range l.sets.Current().Programs() {
		known, ok := v.catalog.Get(now.Name())
		if !ok || known != now && needOf(known.Set) != needOf(now.Set) {
			return fmt.Errorf("SidecarSet %s has changed during this pass", now.Name())
		}
	}
	return nil
}

// need is the part of a SidecarSet that decides about its entry. Other changes, such as
// those of the status, must not keep the leader from settling and removing entries.
type need struct {
	uid        types.UID
	generation int64
	entry      string // "" if no entry can be written
}

func needOf(set *appsv1beta1.SidecarSet) need {
	entry, _ := entryplan.Of(set)
	return need{set.UID, set.Generation, entry.Name}
}
