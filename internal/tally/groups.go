package tally

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// Groups are the Pods of a SidecarSet that a user may want to look at. A group names
// its first Pods in the order of names, independent of the order of events.
type Groups struct {
	// Uninjected are the Pods that Counters.Uninjected counts, by why they are not
	// injected.
	Uninjected []appsv1beta1.SidecarSetPodGroup
	// Failing are Pods in flight with a sidecar that does not start, by the kubelet's reason.
	Failing []appsv1beta1.SidecarSetPodGroup
}

// named is the number of Pods that a group names.
const named = 5

// concern is why a Pod is in a group of its SidecarSet: a reason of uninjected
// Pods, or the trouble of a sidecar.
type concern uint8

const (
	none concern = iota
	older
	missed
	missing
	removed
	firstTrouble // the first podstate.Trouble but zero

	concerns = firstTrouble + concern(podstate.Troubles) - 1
)

var uninjectedReasons = [firstTrouble]string{
	older: appsv1beta1.ReasonOlderThanSidecarSet, missed: appsv1beta1.ReasonMissedAtCreation,
	missing: appsv1beta1.ReasonSidecarsMissing, removed: appsv1beta1.ReasonRecordRemoved,
}

func (c concern) String() string {
	if c < firstTrouble {
		return uninjectedReasons[c]
	}
	return podstate.Trouble(c - firstTrouble + 1).String()
}

// concernOf returns the group of a Pod with this share.
func (s *sidecarSet) concernOf(r *podstate.Record, sh *share) concern {
	switch {
	case sh.verdict&uninjected != 0:
		return s.whyUninjected(r)
	case sh.verdict&matched != 0 && (sh.away || !sh.over && r.Progress(s.name).InFlight()):
		return s.troubleIn(r)
	}
	return none
}

// whyUninjected decides by the creation time and the annotations of the Pod. A Pod that was
// created in the same second as the SidecarSet counts as older, because it may have been
// admitted before the SidecarSet was in force.
func (s *sidecarSet) whyUninjected(r *podstate.Record) concern {
	_, listed := r.Injection(s.name)
	switch {
	case r.Order.Created <= s.created:
		return older
	case listed:
		return missing
	case slices.Contains(r.Removed, s.name):
		return removed
	}
	return missed
}

func (s *sidecarSet) troubleIn(r *podstate.Record) concern {
	for i := range s.sidecars {
		for _, name := range s.sidecars[i].containers {
			if c, ok := r.Container(name); ok && c.Trouble != 0 {
				return firstTrouble + concern(c.Trouble) - 1
			}
		}
	}
	return none
}

// group moves a Pod from one group of a SidecarSet to another.
func (t *Tally) group(sh *share, now concern) {
	if sh.concern == now {
		return
	}
	if sh.concern != none {
		heap.Remove(&sh.set.groups[sh.concern], int(sh.place))
	}
	if sh.concern = now; now != none {
		heap.Push(&sh.set.groups[now], sh)
	}
	t.alter(sh.set)
}

func (s *sidecarSet) groupsOf(from, to concern) (all []appsv1beta1.SidecarSetPodGroup) {
	for c := from; c < to; c++ {
		if g := s.groups[c]; len(g) > 0 {
			all = append(all, appsv1beta1.SidecarSetPodGroup{Reason: c.String(), Pods: int32(len(g)), First: g.first(named)})
		}
	}
	return all
}

// group is a heap of shares, the first by namespace and name at the top. Each share knows its
// place, so that adding or removing one takes a logarithm of steps.
type group []*share

func (g group) Len() int           { return len(g) }
func (g group) Less(i, j int) bool { return g[i].before(g[j]) }

func (g group) Swap(i, j int) {
	g[i], g[j] = g[j], g[i]
	g[i].place, g[j].place = int32(i), int32(j)
}

func (g *group) Push(sh any) {
	added := sh.(*share)
	added.place = int32(len(*g))
	*g = append(*g, added)
}

func (g *group) Pop() any {
	all, last := *g, len(*g)-1
	removed := all[last]
	all[last] = nil
	if *g = all[:last]; cap(all) > 64 && last < cap(all)/4 {
		*g = slices.Clone(*g) // a group that was large for a while gives its memory back
	}
	return removed
}

// first returns the names of the first Pods in order.
func (g group) first(most int) []string {
	var names []string
	next := []int{0} // places that may have the next one
	for len(names) < min(most, len(g)) {
		least := 0
		for i := range next {
			if g[next[i]].before(g[next[least]]) {
				least = i
			}
		}
		place := next[least]
		next = slices.Delete(next, least, least+1)
		for child := 2*place + 1; child <= 2*place+2 && child < len(g); child++ {
			next = append(next, child)
		}
		r := g[place].pod.record
		names = append(names, r.Namespace.Value()+"/"+r.Name)
	}
	return names
}

// before orders shares by the namespace and name of their Pods.
func (sh *share) before(other *share) bool {
	a, b := sh.pod.record, other.pod.record
	if a.Namespace != b.Namespace {
		return strings.Compare(a.Namespace.Value(), b.Namespace.Value()) < 0
	}
	return cmp.Less(a.Name, b.Name)
}

// RevisionCount counts the matched Pods that record one ControllerRevision.
type RevisionCount struct{ Pods, Ready int32 }

// recorded is what a matched Pod records: a ControllerRevision, and whether the
// Pod is ready. The zero value records none.
type recorded struct {
	revision podstate.Name
	ready    bool
}

// recordedBy returns what a Pod records, given the verdict on it.
func (s *sidecarSet) recordedBy(r *podstate.Record, v verdict) recorded {
	if v&matched == 0 {
		return recorded{}
	}
	in, _ := r.Injection(s.name)
	return recorded{in.Revision, v&ready != 0}
}

// swapRevision counts a Pod under what it records now.
func (t *Tally) swapRevision(sh *share, now recorded) {
	if sh.recorded == now {
		return
	}
	sh.set.addRevision(sh.recorded, -1)
	sh.set.addRevision(now, 1)
	sh.recorded = now
	t.alter(sh.set)
}

func (s *sidecarSet) addRevision(r recorded, n int32) {
	if r.revision == 0 {
		return
	}
	count := s.revisions[r.revision]
	count.Pods += n
	if r.ready {
		count.Ready += n
	}
	if count.Pods == 0 {
		delete(s.revisions, r.revision)
		return
	}
	s.revisions[r.revision] = count
}
