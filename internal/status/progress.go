package status

import "time"

// Progress remembers when a rollout last moved. The zero Progress has seen
// nothing. A new leader begins with it, so that a rollout counts as stalled later
// than with the leader before, and never too early.
type Progress struct {
	seen  mark
	moved time.Time
}

// mark is what changes as a rollout moves. Readiness is not in it: an app that
// flaps is no progress.
type mark struct {
	generation        int64
	updated, inFlight int32
	paused            bool
}

// Observe returns when what it is given was first so.
func (p *Progress) Observe(o Observation) time.Time {
	now := mark{o.Generation, o.Counters.Updated, o.Rollout.InFlight, o.Rollout.Paused}
	if p.moved.IsZero() || now != p.seen || p.moved.After(o.Now) {
		p.seen, p.moved = now, o.Now
	}
	return p.moved
}
