package podwebhook

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
	// Webhook is the name of the webhook that its selectors need; "" if it can have none. Shard is the shard
	// that this webhook belongs in.
	Webhook string
	Shard   int
	// Began is when the read began, by the leader's clock.
	Began time.Time
}

// The two timers of the leader. Both run from when the leader first sees the last review of a dependency.
const (
	// StoredWithin is longer than an API server takes from the review of a SidecarSet to its
	// write: it ends a request after 34 s.
	StoredWithin = 90 * time.Second
	// StoredSoon is that time for a webhook whose selectors no stored SidecarSet has: an unauthenticated client
	// may have sent the review. Most SidecarSets are stored after 10 ms.
	StoredSoon = 2 * time.Second
)

// Reviews remembers when a leader first saw the last review of each dependency. It begins empty, so a
// new leader counts from its start. It is used by one goroutine.
type Reviews map[reviewKey]seenReview

type reviewKey struct{ webhook, name, uid string }

type seenReview struct {
	review uint64
	at     time.Time
}

// Observe notes the dependencies of all shards at a time. A nil shard has none.
func (r Reviews) Observe(shards *[Shards]*Shard, now time.Time) {
	present := map[reviewKey]bool{}
	for _, s := range shards {
		if s == nil {
			continue
		}
		for webhook, dependencies := range s.Dependencies {
			for _, n := range dependencies {
				key := reviewKey{webhook, n.Name, n.UID}
				present[key] = true
				if seen, ok := r[key]; !ok || seen.review != n.Review {
					r[key] = seenReview{n.Review, now}
				}
			}
		}
	}
	maps.DeleteFunc(r, func(key reviewKey, _ seenReview) bool { return !present[key] })
}

// First returns when the leader first saw the last review of a dependency.
func (r Reviews) First(webhook string, n Dependency) time.Time {
	return r[reviewKey{webhook, n.Name, n.UID}].at
}

// Case are the facts about one dependency by which Decide decides.
type Case struct {
	Shard      int
	Webhook    string
	Dependency Dependency
	// Fact comes from a read that began after the leader had seen the version of the shard that
	// it is about to write from.
	Fact Fact
	// WasStored: the leader had seen the SidecarSet with this UID stored before the read began.
	WasStored bool
	// First is when the leader first saw the last review. If it is zero, no timer has ended.
	First time.Time
	// InUse: a SidecarSet is stored with the selectors of the webhook, by the leader's snapshot, or,
	// since that may be behind, by the reads of the webhook's other dependencies.
	InUse bool
	// Moved: every reachable API server uses the webhook that Fact names, in its shard, with a dependency of
	// this SidecarSet; and the shard was last written by a process that finds shards as the leader does.
	Moved bool
}

// Decide says what becomes of a dependency that no SidecarSet of the leader's snapshot has.
func (c *Case) Decide() Decision {
	late := !c.First.IsZero() && Wait(c.First, c.Fact.Began, c.InUse) == 0
	switch is := c.Fact.Stored && c.Fact.UID == c.Dependency.UID; {
	case is && c.Fact.Generation >= c.Dependency.Generation:
		isHere := c.Fact.Webhook == c.Webhook && c.Fact.Shard == c.Shard
		return Decision{Drop: !isHere && (c.Fact.Webhook == "" || c.Moved)}
	case is && late:
		return Decision{Lower: c.Fact.Generation}
	case is:
		return Decision{}
	}
	return Decision{Drop: c.WasStored || late}
}

// Wait returns the time until the timer of a dependency ends, that began at first; 0 if it has ended.
func Wait(first, now time.Time, inUse bool) time.Duration {
	wait := StoredSoon
	if inUse {
		wait = StoredWithin
	}
	return max(wait-now.Sub(first), 0)
}
