package rollout

import (
	"slices"

	"github.com/sidecarset/operator/internal/podstate"
)

// crew is the Pods of one controller. A Pod without a controller is a crew of its own.
type crew struct {
	name podstate.Name
	pods int

	// The rest of this block is of the present pass.

	size int // Pods that are Ready, or were: others add no capacity yet
	down int // those of size that are not Ready, count, or are about to be evicted
	ours int // Pods that count
	// lame are the Pods that are not Ready, without those that count, and carry the content, or were
	// created since the first Pod was deleted whose place is kept: left.
	lame int
	left int64
	// places is how many places are kept, and mended how many Pods are to be repaired for them.
	places, mended int
	// fresh are the Pods that were created since the first eviction's content became current,
	// freshDown those that are not Ready, and oldest is when the oldest of these was created.
	fresh, freshDown int
	oldest           int64

	// evictions are when Pods of this controller were evicted, without those that are forgotten.
	evictions []eviction
	since     int64 // when the content became current for which the first was evicted
	had       int   // how many fresh Pods there were then
}

func (r *Rollout) crewOf(p *podstate.Record) *crew {
	name := p.Controller
	if name == 0 {
		name = podstate.MakeName(string(p.UID))
	}
	c := r.crews[name]
	if c == nil {
		c = &crew{name: name}
		r.crews[name] = c
	}
	return c
}

// dismiss takes one Pod from a crew.
func (r *Rollout) dismiss(c *crew) {
	if c.pods--; c.pods == 0 && len(c.evictions) == 0 {
		delete(r.crews, c.name)
	}
}

// begin forgets the numbers of the last pass.
func (c *crew) begin() {
	c.size, c.down, c.ours, c.lame, c.fresh, c.freshDown, c.oldest = 0, 0, 0, 0, 0, 0, 0
}

// note counts one Pod of the crew.
func (c *crew) note(e *entry, counts bool) {
	down := !e.Record.Ready || counts || e.hand == leaving
	if e.capacity() {
		c.size++
		if down {
			c.down++
		}
	}
	switch {
	case counts:
		c.ours++
	case c.replaces(e):
		c.lame++
	}
	if since := c.since; since != 0 && e.Record.Order.Created >= since {
		c.fresh++
		if !e.Record.Ready {
			c.freshDown++
			if c.oldest == 0 || e.Record.Order.Created < c.oldest {
				c.oldest = e.Record.Order.Created
			}
		}
	}
}

// replaces reports whether the Pod may be what became of one that was deleted while it counted.
func (c *crew) replaces(e *entry) bool {
	return !e.Record.Ready && (e.Carries || c.left != 0 && e.Record.Order.Created >= c.left)
}

// capacity reports whether the Pod is part of what maxUnavailable is a share of: a Pod that has
// never been Ready adds nothing that could become unavailable.
func (e *entry) capacity() bool { return e.ready || e.Written.At != 0 || e.Unfinished }

// spare reports whether one more Pod of the crew may be disturbed: the crew does not have its
// share of the budget down by the rollout, and at most a third of its Pods, or its share, would
// not be Ready.
func (c *crew) spare(allowed, total int) bool {
	share := (allowed*c.size + max(total, 1) - 1) / max(total, 1)
	return c.ours < share && c.down+1 <= max(share, (c.size+2)/3)
}

// place is what a Pod leaves behind that was deleted while it counted.
type place struct {
	crew podstate.Name
	pod  string // namespace/name
	at   int64
	born int64 // when the first Pod of this place was deleted
	// failed: the Pod would not have come back by waiting.
	failed bool
}

// placeHeld is how long a place is kept at least, in seconds: for the controller to create
// another Pod.
const placeHeld = 30

// renewPlace keeps a place for the next Pod of the controller if the Pod for which it was kept is
// deleted before it was Ready.
func (r *Rollout) renewPlace(e *entry, now int64) {
	if !e.crew.replaces(e) {
		return
	}
	for i := range r.places {
		if p := &r.places[i]; p.crew == e.crew.name && p.at+placeHeld <= now {
			p.at = now
			return
		}
	}
}

// keepPlaces drops the places that are over: after placeHeld, once as many Pods of the crew that
// carry the content are Ready. It returns when to look again, 0 for never.
func (r *Rollout) keepPlaces(now int64) (again int64) {
	lame := map[podstate.Name]int{}
	r.places = slices.DeleteFunc(r.places, func(p place) bool {
		have, known := lame[p.crew]
		if c := r.crews[p.crew]; !known && c != nil {
			have = c.lame
		}
		lame[p.crew] = have - 1
		if at := p.at + placeHeld; now < at {
			again = sooner(again, at)
			return false
		}
		return have <= 0
	})
	return again
}

// sooner is the earlier of two times; 0 is never.
func sooner(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
