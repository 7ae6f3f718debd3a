package podwebhook

import (
	"slices"
	"time"
)

// Doubt is a dependency of a shard that the leader's snapshot does not have, or has in an older generation
// only. Reads decide about it.
type Doubt struct {
	Shard      int
	Webhook    string
	Dependency Dependency
	// Due is true if a read can decide it. Wait is the time until its timer ends otherwise.
	Due  bool
	Wait time.Duration
	// WasStored, First and InUse are facts about it from before any read; see Case. InUse is by the
	// leader's snapshot.
	WasStored, InUse bool
	First            time.Time
	// Others are the SidecarSets of the webhook's other dependencies. If no SidecarSet of the snapshot has the
	// selectors of the webhook, one of them may be stored with them.
	Others []string
}

// Known is what the leader knows before it reads.
type Known struct {
	// Generation returns the generation in which the snapshot has the SidecarSet of a dependency; false if
	// it has none with that name and UID.
	Generation func(Dependency) (int64, bool)
	// InUse reports whether a SidecarSet of the snapshot has the selectors of a webhook.
	InUse func(webhook string) bool
	// Seen reports whether the leader has seen the SidecarSet of a dependency stored.
	Seen    func(Dependency) bool
	Reviews Reviews
	Now     time.Time
}

// Doubts returns the dependencies that only reads can decide about, given the webhooks that the leader's
// snapshot wants. It is the first step of planning; Reconcile is the second one.
func (s *Shard) Doubts(wanted []Webhook, k Known) (all []Doubt) {
	for name, dependencies := range s.Dependencies {
		var e *Webhook
		if at := slices.IndexFunc(wanted, func(e Webhook) bool { return e.Name == name }); at >= 0 {
			e = &wanted[at]
		}
		for _, n := range dependencies {
			if stored := e.dependency(n); stored.Name != "" && n.Generation <= stored.Generation {
				continue
			}
			d := Doubt{Shard: s.Index, Webhook: name, Dependency: n, InUse: k.InUse(name), WasStored: k.Seen(n), First: k.Reviews.First(name, n)}
			generation, has := k.Generation(n)
			d.Wait = Wait(d.First, k.Now, d.InUse)
			d.Due = d.Wait == 0 || !has && d.WasStored || has && generation >= n.Generation
			if !d.InUse {
				for _, other := range dependencies {
					if !other.Is(n) {
						d.Others = append(d.Others, other.Name)
					}
				}
			}
			all = append(all, d)
		}
	}
	return all
}

// dependency returns the dependency of the webhook that is of the same SidecarSet; zero if e is nil or has none.
func (e *Webhook) dependency(n Dependency) (stored Dependency) {
	if e != nil {
		if at := slices.IndexFunc(e.Dependencies, n.Is); at >= 0 {
			stored = e.Dependencies[at]
		}
	}
	return stored
}

// Case returns the facts about a doubt after the reads; false if the SidecarSet was not read. moved
// reports whether every reachable API server uses the webhook that a fact names, with that dependency. The
// webhook is in use if a read shows a SidecarSet with its selectors, this one too: the leader's snapshot
// may be behind. If another SidecarSet of the webhook was not read, the webhook counts as in use.
func (d *Doubt) Case(facts map[string]Fact, moved func(Fact, Dependency) bool) (c Case, ok bool) {
	fact, ok := facts[d.Dependency.Name]
	if !ok {
		return c, false
	}
	inUse := d.InUse || fact.Webhook == d.Webhook || slices.ContainsFunc(d.Others, func(name string) bool {
		other, read := facts[name]
		return !read || other.Webhook == d.Webhook
	})
	return Case{
		Shard: d.Shard, Webhook: d.Webhook, Dependency: d.Dependency, Fact: fact, WasStored: d.WasStored, First: d.First, InUse: inUse,
		Moved: fact.Webhook != "" && moved(fact, d.Dependency),
	}, true
}

// Decisions are what becomes of the dependencies of a shard that were in doubt. A dependency that is not in it stays.
type Decisions map[Doubtful]Decision

// Doubtful names a dependency of a webhook.
type Doubtful struct {
	Webhook    string
	Dependency Dependency
}

// Is returns the name of the doubt.
func (d *Doubt) Is() Doubtful { return Doubtful{d.Webhook, d.Dependency} }

// DropAll are the decisions by which all dependencies go that are not wanted.
func (s *Shard) DropAll() Decisions {
	all := Decisions{}
	for name, dependencies := range s.Dependencies {
		for _, n := range dependencies {
			all[Doubtful{name, n}] = Decision{Drop: true}
		}
	}
	return all
}
