package protocol

import (
	"maps"

	"github.com/sidecarset/operator/internal/podwebhook"
)

// mistake is what a protocol gets wrong. Without any, it is that of docs/design/0005.
type mistake string

const (
	none mistake = ""

	// Of etcd: versions begin again with each object.
	counterReset mistake = "serials are counters"

	// Of a review.
	noProbe       mistake = "users are never warned"
	noSerialRaise mistake = "a review that raises a dependency keeps the number"
	wrongShard    mistake = "a move adds its dependency to the webhook that it leaves"
	noAlwaysWrite mistake = "a review writes nothing if the dependency is there"
	replaceUID    mistake = "a review replaces the dependency of another UID"

	// Of a replica that answers a call.
	staleDependencies mistake = "a replica uses its own copy of the shard"
	ignoreUID         mistake = "a replica compares generations only"
	keepNotStored     mistake = "a replica remembers that something was not stored"
	joinRead          mistake = "a call joins a read that had begun"
	downgrade         mistake = "a later call takes back what an earlier one injected"
	ruleShard         mistake = "a call decides about the SidecarSets of its shard only"

	// Of the leader.
	dropWithoutRead    mistake = "the leader drops by its snapshot"
	otherSelectors     mistake = "a dependency with other selectors goes whatever its generation"
	otherUID           mistake = "a dependency goes because another UID is stored"
	timerByDependency  mistake = "a review does not start the timer anew"
	dropNotLower       mistake = "a generation that is not stored is dropped, not lowered"
	moveEarly          mistake = "a webhook goes before the one that it moved to is in use"
	dropSatisfied      mistake = "dependencies of stored SidecarSets go"
	shortTimer         mistake = "dependencies of selectors in use go after two seconds"
	inUseBySnapshot    mistake = "only the snapshot says which selectors are in use"
	failedIsNone       mistake = "a failed read says that nothing is stored"
	readOlderThanKnown mistake = "the leader concludes with a read older than what it knows"
	asksNoNamespace    mistake = "a leader does not look for another one of a former Namespace"
	goesBackUnmended   mistake = "shards that API servers went back from are not written anew"
)

// firstSeeds are the seeds from which each mistake is tried: earlier ones find nothing.
var firstSeeds = map[mistake]uint64{
	counterReset: 6, noProbe: 0, noSerialRaise: 1, wrongShard: 0, noAlwaysWrite: 12, replaceUID: 22,
	staleDependencies: 0, ignoreUID: 0, keepNotStored: 0, joinRead: 8, downgrade: 9, ruleShard: 94,
	dropWithoutRead: 3, otherSelectors: 2, otherUID: 25, timerByDependency: 25, dropNotLower: 270, moveEarly: 0, dropSatisfied: 0,
	asksNoNamespace: 138, shortTimer: 26, inUseBySnapshot: 115, failedIsNone: 5, readOlderThanKnown: 8, goesBackUnmended: 334,
}

// decide decides about a dependency as the leader does.
func (m mistake) decide(c podwebhook.Case) podwebhook.Decision {
	is := c.Fact.Stored && c.Fact.UID == c.Dependency.UID
	c.Moved = c.Moved || m == moveEarly
	c.InUse = c.InUse && m != shortTimer
	v := c.Decide()
	switch {
	case m == otherSelectors && is && c.Fact.Webhook != c.Webhook, m == otherUID && c.Fact.Stored && !is, m == dropNotLower && v.Lower > 0:
		return podwebhook.Decision{Drop: true}
	}
	return v
}

// spoil returns the version of a shard from which a review for a webhook begins.
func (m mistake) spoil(s *podwebhook.Shard, e *podwebhook.Webhook) *podwebhook.Shard {
	if len(s.Dependencies[e.Name]) == 0 {
		return s
	}
	dependency, spoilt := e.Dependencies[0], *s
	spoilt.Dependencies = maps.Clone(s.Dependencies)
	spoilt.Dependencies[e.Name] = nil
	for _, n := range s.Dependencies[e.Name] {
		if m == noSerialRaise && n.Is(dependency) {
			n.Generation = max(n.Generation, dependency.Generation)
		}
		if m != replaceUID || n.Name != dependency.Name || n.UID == dependency.UID {
			spoilt.Dependencies[e.Name] = append(spoilt.Dependencies[e.Name], n)
		}
	}
	return &spoilt
}
