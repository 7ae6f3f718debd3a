package entry

import (
	"slices"
	"time"
)

// Doubt is a need of a slot that the leader's snapshot does not have, or has in an older generation
// only. Reads decide about it.
type Doubt struct {
	Slot  int
	Entry string
	Need  Need
	// Due is true if a read can decide it. Wait is the time until its timer ends otherwise.
	Due  bool
	Wait time.Duration
	// WasStored, First and InUse are facts about it from before any read; see Case. InUse is by the
	// leader's snapshot.
	WasStored, InUse bool
	First            time.Time
	// Others are the SidecarSets of the entry's other needs. If no SidecarSet of the snapshot has the
	// selectors of the entry, one of them may be stored with them.
	Others []string
}

// Known is what the leader knows before it reads.
type Known struct {
	// Generation returns the generation in which the snapshot has the SidecarSet of a need; false if
	// it has none with that name and UID.
	Generation func(Need) (int64, bool)
	// InUse reports whether a SidecarSet of the snapshot has the selectors of an entry.
	InUse func(entry string) bool
	// Seen reports whether the leader has seen the SidecarSet of a need stored.
	Seen    func(Need) bool
	Reviews Reviews
	Now     time.Time
}

// Doubts returns the needs that only reads can decide about, given the entries that the leader's
// snapshot wants. It is the first step of planning; Reconcile is the second one.
func (s *Slot) Doubts(wanted []Entry, k Known) (all []Doubt) {
	for name, needs := range s.Needs {
		var e *Entry
		if at := slices.IndexFunc(wanted, func(e Entry) bool { return e.Name == name }); at >= 0 {
			e = &wanted[at]
		}
		for _, n := range needs {
			if stored := e.need(n); stored.Name != "" && n.Generation <= stored.Generation {
				continue
			}
			d := Doubt{Slot: s.Index, Entry: name, Need: n, InUse: k.InUse(name), WasStored: k.Seen(n), First: k.Reviews.First(name, n)}
			generation, has := k.Generation(n)
			d.Wait = Wait(d.First, k.Now, d.InUse)
			d.Due = d.Wait == 0 || !has && d.WasStored || has && generation >= n.Generation
			if !d.InUse {
				for _, other := range needs {
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

// need returns the need of the entry that is of the same SidecarSet; zero if e is nil or has none.
func (e *Entry) need(n Need) (stored Need) {
	if e != nil {
		if at := slices.IndexFunc(e.Needs, n.Is); at >= 0 {
			stored = e.Needs[at]
		}
	}
	return stored
}

// Case returns the facts about a doubt after the reads; false if the SidecarSet was not read. moved
// reports whether every reachable API server uses the entry that a fact names, with that need. The
// entry is in use if a read shows a SidecarSet with its selectors, this one too: the leader's snapshot
// may be behind. If another SidecarSet of the entry was not read, the entry counts as in use.
func (d *Doubt) Case(facts map[string]Fact, moved func(Fact, Need) bool) (c Case, ok bool) {
	fact, ok := facts[d.Need.Name]
	if !ok {
		return c, false
	}
	inUse := d.InUse || fact.Entry == d.Entry || slices.ContainsFunc(d.Others, func(name string) bool {
		other, read := facts[name]
		return !read || other.Entry == d.Entry
	})
	return Case{
		Slot: d.Slot, Entry: d.Entry, Need: d.Need, Fact: fact, WasStored: d.WasStored, First: d.First, InUse: inUse,
		Moved: fact.Entry != "" && moved(fact, d.Need),
	}, true
}

// Decisions are what becomes of the needs of a slot that were in doubt. A need that is not in it stays.
type Decisions map[Doubtful]Decision

// Doubtful names a need of an entry.
type Doubtful struct {
	Entry string
	Need  Need
}

// Is returns the name of the doubt.
func (d *Doubt) Is() Doubtful { return Doubtful{d.Entry, d.Need} }

// DropAll are the decisions by which all needs go that are not wanted.
func (s *Slot) DropAll() Decisions {
	all := Decisions{}
	for name, needs := range s.Needs {
		for _, n := range needs {
			all[Doubtful{name, n}] = Decision{Drop: true}
		}
	}
	return all
}
