package protocol

import (
	"maps"

	"github.com/sidecarset/operator/internal/entry"
)

// mistake is what a protocol gets wrong. Without any, it is that of docs/design/0005.
type mistake string

const (
	none mistake = ""

	// Of etcd: versions begin anew with each object.
	counterReset mistake = "serials are counters"

	// Of a review.
	noBarrier     mistake = "authors are never warned"
	noSerialRaise mistake = "a review that raises a need keeps the number"
	wrongSlot     mistake = "a move adds its need to the entry that it leaves"
	noAlwaysWrite mistake = "a review writes nothing if the need is there"
	replaceUID    mistake = "a review replaces the need of another UID"

	// Of a replica that answers a call.
	staleNeeds    mistake = "a replica uses its own copy of the slot"
	ignoreUID     mistake = "a replica compares generations only"
	keepNotStored mistake = "a replica remembers that something was not stored"
	joinRead      mistake = "a call joins a read that had begun"
	downgrade     mistake = "a later call takes back what an earlier one injected"
	ruleSlot      mistake = "a call decides about the SidecarSets of its slot only"

	// Of the leader.
	dropWithoutRead    mistake = "the leader drops by its snapshot"
	otherSelectors     mistake = "a need with other selectors goes whatever its generation"
	otherUID           mistake = "a need goes because another UID is stored"
	timerByNeed        mistake = "a review does not start the timer anew"
	dropNotLower       mistake = "a generation that is not stored is dropped, not lowered"
	moveEarly          mistake = "an entry goes before the one that it moved to is in use"
	dropSatisfied      mistake = "needs of stored SidecarSets go"
	shortTimer         mistake = "needs of selectors in use go after two seconds"
	inUseBySnapshot    mistake = "only the snapshot says which selectors are in use"
	failedIsNone       mistake = "a failed read says that nothing is stored"
	readOlderThanKnown mistake = "the leader concludes with a read older than what it knows"
	asksNoNamespace    mistake = "a leader does not look for another one of a former Namespace"
	goesBackUnmended   mistake = "slots that API servers went back from are not written anew"
)

// firstSeeds are the seeds from which each mistake is tried: earlier ones find nothing.
var firstSeeds = map[mistake]uint64{
	counterReset: 0, noBarrier: 0, noSerialRaise: 0, wrongSlot: 0, noAlwaysWrite: 0, replaceUID: 0,
	staleNeeds: 0, ignoreUID: 0, keepNotStored: 0, joinRead: 0, downgrade: 0, ruleSlot: 90,
	dropWithoutRead: 0, otherSelectors: 0, otherUID: 0, timerByNeed: 0, dropNotLower: 240, moveEarly: 0, dropSatisfied: 0,
	asksNoNamespace: 130, shortTimer: 0, inUseBySnapshot: 110, failedIsNone: 0, readOlderThanKnown: 0, goesBackUnmended: 330,
}

// judge decides about a need as the leader does.
func (m mistake) decide(c entry.Case) entry.Decision {
	is := c.Fact.Stored && c.Fact.UID == c.Need.UID
	c.Moved = c.Moved || m == moveEarly
	c.InUse = c.InUse && m != shortTimer
	v := c.Decide()
	switch {
	case m == otherSelectors && is && c.Fact.Entry != c.Entry, m == otherUID && c.Fact.Stored && !is, m == dropNotLower && v.Lower > 0:
		return entry.Decision{Drop: true}
	}
	return v
}

// spoil returns the version of a slot from which a review for an entry begins.
func (m mistake) spoil(s *entry.Slot, e *entry.Entry) *entry.Slot {
	if len(s.Needs[e.Name]) == 0 {
		return s
	}
	need, spoilt := e.Needs[0], *s
	spoilt.Needs = maps.Clone(s.Needs)
	spoilt.Needs[e.Name] = nil
	for _, n := range s.Needs[e.Name] {
		if m == noSerialRaise && n.Is(need) {
			n.Generation = max(n.Generation, need.Generation)
		}
		if m != replaceUID || n.Name != need.Name || n.UID == need.UID {
			spoilt.Needs[e.Name] = append(spoilt.Needs[e.Name], n)
		}
	}
	return &spoilt
}
