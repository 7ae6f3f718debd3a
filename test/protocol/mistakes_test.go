package protocol

import (
	"encoding/json"
	"slices"

	"github.com/sidecarset/operator/internal/entry"
)

// rules are the mistakes of a protocol. Without any, it is that of docs/design/0005.
type rules struct {
	mixedFlags bool // every second process excludes other namespaces, as while flags are rolled out; no mistake

	// Of etcd: versions begin anew with each object, as counters would.
	counterReset bool

	// Of a review.
	noBarrier, noSerialRaise, wrongSlot, noAlwaysWrite, replaceUID bool

	// Of a replica that answers a call.
	staleNeeds, ignoreUID, keepNotStored, joinRead, downgrade, ruleSlot bool

	// Of the leader.
	dropWithoutRead, otherSelectors, otherUID, timerByNeed, dropNotLower, moveEarly, dropSatisfied bool
	shortTimer, readOlderThanKnown, goesBackUnmended, inUseBySnapshot, failedIsNone                bool
}

// judge decides about a need, with the mistakes of a leader.
func (r *rules) judge(c entry.Case) entry.Verdict {
	is := c.Fact.Stored && c.Fact.UID == c.Need.UID
	if r.moveEarly {
		c.Moved = true
	}
	if r.shortTimer {
		c.InUse = false
	}
	v := c.Judge()
	switch {
	case r.otherSelectors && is && c.Fact.Entry != c.Entry, r.otherUID && c.Fact.Stored && !is, r.dropNotLower && v.Lower > 0:
		return entry.Verdict{Drop: true}
	}
	return v
}

// record is what a slot says besides its entries.
type slotRecord struct {
	Serial   uint64                  `json:"serial,string"`
	Number   uint64                  `json:"number,string"`
	Earlier  []uint64                `json:"earlier,omitempty"`
	Needs    map[string][]entry.Need `json:"needs,omitempty"`
	Excluded []string                `json:"excluded,omitempty"`
}

// edit changes the record of a slot, and the path of its entries with it.
func edit(slot int, next *configuration, change func(*slotRecord)) *configuration {
	const annotation = "sidecarset.io/slot"
	var r slotRecord
	if err := json.Unmarshal([]byte(next.Annotations[annotation]), &r); err != nil {
		panic(err)
	}
	number := r.Number
	change(&r)
	out, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	next.Annotations[annotation] = string(out)
	for i := range next.Webhooks {
		if path := next.Webhooks[i].ClientConfig.Service.Path; *path == entry.PodsPath(slot, number) {
			*path = entry.PodsPath(slot, r.Number)
		}
	}
	return next
}

// reviewed makes mistakes in what a review is about to write.
func (r *rules) reviewed(s *entry.Slot, next *configuration, e *entry.Entry) *configuration {
	need := e.Needs[0]
	switch {
	case r.noSerialRaise && slices.ContainsFunc(s.Needs[e.Name], need.Is):
		return edit(s.Index, next, func(r *slotRecord) { r.Number = s.Number })
	case r.replaceUID:
		return edit(s.Index, next, func(r *slotRecord) {
			r.Needs[e.Name] = slices.DeleteFunc(r.Needs[e.Name], func(n entry.Need) bool { return n.Name == need.Name && n.UID != need.UID })
		})
	}
	return next
}

// reconciled makes mistakes in what a leader is about to write; nil if nothing differs.
func (r *rules) reconciled(s *entry.Slot, next *configuration, sets map[string]*sidecarSet) *configuration {
	if !r.dropSatisfied || next == nil {
		return next
	}
	return edit(s.Index, next, func(r *slotRecord) {
		for name, needs := range r.Needs {
			r.Needs[name] = slices.DeleteFunc(needs, func(n entry.Need) bool {
				stored := sets[n.Name]
				return stored != nil && stored.need().Is(n) && int64(stored.gen) >= n.Generation
			})
		}
	})
}
