package entry

import (
	"maps"
	"time"
)

// Fact is what a read by name showed of a SidecarSet.
type Fact struct {
	// Stored is false if no SidecarSet has the name. The other fields are then zero.
	Stored     bool
	UID        string // shortened
	Generation int64
	// Entry is the name of the entry that its selectors need; "" if it can have none. Slot is the slot
	// that this entry belongs in.
	Entry string
	Slot  int
	// Began is when the read began, by the leader's clock.
	Began time.Time
}

// The two timers of the leader. Both run from when the leader first sees the last review of a need.
const (
	// StoredWithin is longer than an API server takes from the review of a SidecarSet to its
	// write: it ends a request after 34 s.
	StoredWithin = 90 * time.Second
	// StoredSoon is that time for an entry whose selectors no stored SidecarSet has: a stranger
	// may have sent the review. Most SidecarSets are stored after 10 ms.
	StoredSoon = 2 * time.Second
)

// Reviews remembers when a leader first saw the last review of each need. It begins empty, so a
// new leader counts from its start. It is used by one goroutine.
type Reviews map[reviewKey]seenReview

type reviewKey struct{ entry, name, uid string }

type seenReview struct {
	review uint64
	at     time.Time
}

// Observe notes the needs of all slots at a time. A nil slot has none.
func (r Reviews) Observe(slots *[Slots]*Slot, now time.Time) {
	present := map[reviewKey]bool{}
	for _, s := range slots {
		if s == nil {
			continue
		}
		for entry, needs := range s.Needs {
			for _, n := range needs {
				key := reviewKey{entry, n.Name, n.UID}
				present[key] = true
				if seen, ok := r[key]; !ok || seen.review != n.Review {
					r[key] = seenReview{n.Review, now}
				}
			}
		}
	}
	maps.DeleteFunc(r, func(key reviewKey, _ seenReview) bool { return !present[key] })
}

// First returns when the leader first saw the last review of a need.
func (r Reviews) First(entry string, n Need) time.Time { return r[reviewKey{entry, n.Name, n.UID}].at }

// Case are the facts about one need by which Decide decides.
type Case struct {
	Slot  int
	Entry string
	Need  Need
	// Fact comes from a read that began after the leader had seen the version of the slot that
	// it is about to write from.
	Fact Fact
	// WasStored: the leader had seen the SidecarSet with this UID stored before the read began.
	WasStored bool
	// First is when the leader first saw the last review. If it is zero, no timer has ended.
	First time.Time
	// InUse: a SidecarSet is stored with the selectors of the entry, by the leader's snapshot, or,
	// since that may be behind, by the reads of the entry's other needs.
	InUse bool
	// Moved: every reachable API server uses the entry that Fact names, in its slot, with a need of
	// this SidecarSet; and the slot was last written by a process that finds slots as the leader does.
	Moved bool
}

// Decide says what becomes of a need that no SidecarSet of the leader's snapshot has.
func (c *Case) Decide() Decision {
	late := !c.First.IsZero() && Wait(c.First, c.Fact.Began, c.InUse) == 0
	switch is := c.Fact.Stored && c.Fact.UID == c.Need.UID; {
	case is && c.Fact.Generation >= c.Need.Generation:
		isHere := c.Fact.Entry == c.Entry && c.Fact.Slot == c.Slot
		return Decision{Drop: !isHere && (c.Fact.Entry == "" || c.Moved)}
	case is && late:
		return Decision{Lower: c.Fact.Generation}
	case is:
		return Decision{}
	}
	return Decision{Drop: c.WasStored || late}
}

// Wait returns the time until the timer of a need ends, that began at first; 0 if it has ended.
func Wait(first, now time.Time, inUse bool) time.Duration {
	wait := StoredSoon
	if inUse {
		wait = StoredWithin
	}
	return max(wait-now.Sub(first), 0)
}
