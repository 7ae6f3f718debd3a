package controllers

import (
	"context"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entries"
	"github.com/sidecarset/operator/internal/inject"
)

// provisionalRoom is what the leader knows of provisional entries, and how many of
// them it allows. Each that no SidecarSet was stored for takes a place away; places
// come back one after the other.
type provisionalRoom struct {
	began map[string]provisionalLife // by entry that stands
	room  int
	known bool      // room has been read
	grown time.Time // when a place came back last, or none was missing
}

// provisionalLife is since when a provisional entry has been there, and whether it
// is being removed since no SidecarSet was stored for it.
type provisionalLife struct {
	since   time.Time
	expired bool
}

const (
	// A provisional entry goes when no SidecarSet was stored for it in that time. Most
	// are stored after 10 ms. One that takes longer is in force when the leader has
	// seen it.
	provisionalFor = time.Second
	// roomPause is how long it takes until a place comes back.
	roomPause = 20 * time.Second
	// storedTimeout bounds the question which SidecarSets are stored.
	storedTimeout = 2 * time.Second
)

// expired returns the provisional entries that go since there is no SidecarSet for
// them. Those of stored ones go when their own entries stand.
func (l *podWebhookLeader) expired(ctx context.Context, v *podWebhookView) map[string]bool {
	p := &l.provisional
	p.observe(v.layout, v.now)
	l.webhooks.m.provisional.Set(float64(len(p.began)))
	if len(p.began) == 0 {
		return nil
	}
	wanted := entries.ProvisionalNames(v.wanted)
	expired, fresh := map[string]bool{}, false
	for name, life := range p.began {
		switch age := v.now.Sub(life.since); {
		case wanted[name]:
		case life.expired:
			expired[name] = true
		case age < provisionalFor:
			v.wakeAfter(provisionalFor - age)
		default:
			expired[name], fresh = true, true
		}
	}
	if fresh {
		if err := l.knowsAllStored(ctx, v); err != nil {
			log.FromContext(ctx).V(1).Info("Could not tell yet whether SidecarSets were stored", "reason", err.Error())
			v.wakeAfter(soon)
			return p.expiredBefore()
		}
	}
	for name := range expired {
		if life := p.began[name]; !life.expired {
			life.expired = true
			p.began[name] = life
			p.room = max(p.room-1, 0)
			p.grown = v.now
			l.webhooks.m.unvouched.Inc()
		}
	}
	return expired
}

// observe takes in which provisional entries stand, and lets the room grow.
func (p *provisionalRoom) observe(layout entries.Layout, now time.Time) {
	if p.began == nil {
		p.began = map[string]provisionalLife{}
	}
	stands := map[string]bool{}
	for _, name := range layout.Provisionals() {
		stands[name] = true
		if _, ok := p.began[name]; !ok {
			p.began[name] = provisionalLife{since: now}
		}
	}
	maps.DeleteFunc(p.began, func(name string, _ provisionalLife) bool { return !stands[name] })
	object := layout[entries.Provisional]
	switch {
	case !p.known && object != nil:
		p.known, p.room, p.grown = true, entries.MaxProvisional, now
		if room, ok := entries.RoomOf(object); ok { // what an earlier leader took away stays away
			p.room = room
		}
	case p.room >= entries.MaxProvisional:
		p.grown = now
	case now.Sub(p.grown) >= roomPause:
		p.room, p.grown = p.room+1, now
	}
}

func (p *provisionalRoom) expiredBefore() map[string]bool {
	expired := map[string]bool{}
	for name, life := range p.began {
		if life.expired {
			expired[name] = true
		}
	}
	return expired
}

// wakeAfter has the next pass begin after a time at the latest.
func (v *podWebhookView) wakeAfter(d time.Duration) {
	if v.due == 0 || d < v.due {
		v.due = max(d, time.Millisecond)
	}
}

// knowsAllStored returns nil if the snapshot holds the selectors of every SidecarSet
// that is stored.
func (l *podWebhookLeader) knowsAllStored(ctx context.Context, v *podWebhookView) error {
	ctx, cancel := context.WithTimeout(ctx, storedTimeout)
	defer cancel()
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(appsv1beta1.GroupVersion.WithKind(appsv1beta1.Kind.Kind + "List"))
	if err := l.live.List(ctx, list); err != nil {
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
