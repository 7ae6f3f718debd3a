// Package tally counts the Pods of each SidecarSet. It keeps a record of every active
// Pod, and counters per SidecarSet, which each event changes by the difference. So the
// cost of an event is proportional to the number of SidecarSets of its Pod, and does
// not depend on the number of Pods. The snapshot that admission uses decides which
// SidecarSets select a Pod. The package knows nothing about where Pods come from or
// what is written to a status, and has no clock.
package tally

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
)

// Tally holds the records and the counters. It belongs to one goroutine: no
// method may run at the same time as another.
type Tally struct {
	excluded   inject.Exclusions
	snapshot   *match.Snapshot
	sets       map[string]*sidecarSet
	namespaces map[podstate.Namespace]*namespace
	pods       int

	uncounted, bytes int
	// labels has the number of Pods for each set of labels, so that its bytes count once.
	labels map[podstate.LabelSet]int32

	// pass is the number of the last Replace: Pods with an older one were not in its list.
	pass    uint32
	touched []*sidecarSet

	// watched is the resourceVersion up to which the Pod watch has delivered events.
	watched    uint64
	dueChanged []*sidecarSet
	// unrecorded are the SidecarSets that have got another content since the last call of
	// Unrecorded.
	unrecorded []*sidecarSet
	// settling are the Pods that change at a known time without an event, in seconds.
	settling map[*pod]int64
	now      int64 // the current time, in seconds
}

type namespace struct {
	name   string
	labels labels.Set
	pods   map[string]*pod
}

type pod struct {
	record  *podstate.Record
	members []*membership
	pass    uint32
	// lost: the Node is lost, and no event of the Pod came after that.
	lost bool
}

// memberBytes is what a membership takes, with the Pod of a rollout.
const memberBytes = 320

// membership is what a Pod contributes to a SidecarSet that selects it.
type membership struct {
	set      *sidecarSet
	pod      *pod
	recorded recorded
	count    inplace.Count
	lacking  int32  // place in the SidecarSet's lacking, from 1; 0: not in it
	why      string // the Pod is lacking

	id        rollout.ID
	inRollout bool
	// The Pod is in one of the SidecarSet's chores, or in its number of differing Pods.
	reset, label, differs bool
}

// New returns a Tally without Pods and SidecarSets. API servers never send Pods of the excluded
// namespaces to the operator, so these do not count as uninjected. Injected Pods count as elsewhere.
func New(excluded inject.Exclusions) *Tally {
	return &Tally{
		excluded:   excluded,
		sets:       make(map[string]*sidecarSet),
		namespaces: make(map[podstate.Namespace]*namespace),
		labels:     make(map[podstate.LabelSet]int32),
		settling:   make(map[*pod]int64),
	}
}

// Pods is the number of Pods that are tracked.
func (t *Tally) Pods() int { return t.pods }

// Uncounted is the number of tracked Pods that are in no counter, because their records
// would be too large. It is unknown whether a SidecarSet selects them.
func (t *Tally) Uncounted() int { return t.uncounted }

// Bytes estimates the memory of the tracked Pods.
func (t *Tally) Bytes() int { return t.bytes }

// Changed calls report with the name of each SidecarSet whose State may have changed, or
// that was removed, since the last call.
func (t *Tally) Changed(report func(sidecarSet string)) {
	for i, s := range t.touched {
		t.touched[i] = nil
		s.touched = false
		if now := (reported{Count{s.counters, s.program}, s.alterations}); s.removed || now != s.reported {
			s.reported = now
			report(s.label)
		}
	}
	t.touched = t.touched[:0]
}

// Set adds a Pod or replaces its record. A Pod that is not active is removed.
func (t *Tally) Set(r *podstate.Record) {
	if !r.Active {
		t.forget(r.Namespace, r.Name)
		return
	}
	ns := t.namespace(r.Namespace)
	p, known := ns.pods[r.Name]
	if known && p.record.UID != r.UID {
		t.forget(r.Namespace, r.Name)
		ns, known = t.namespace(r.Namespace), false
	}
	if !known {
		p = &pod{}
		ns.pods[r.Name] = p
		t.pods++
	}
	before := p.record
	p.record, p.pass, p.lost = r, t.pass, false
	t.weigh(before, r)
	switch {
	case r.TooLarge:
		t.assign(p, nil)
	case before == nil || before.TooLarge || before.Labels != r.Labels:
		t.assign(p, t.selecting(ns, r.Labels))
	default:
		t.recount(p)
	}
}

// Delete removes a Pod. A Pod with the same name and another UID stays.
func (t *Tally) Delete(r *podstate.Record) {
	if p := t.pod(r.Namespace, r.Name); p != nil && p.record.UID == r.UID {
		t.forget(r.Namespace, r.Name)
	}
}

// Replace makes the given Pods the only ones.
func (t *Tally) Replace(records []*podstate.Record) {
	t.pass++
	for _, r := range records {
		t.Set(r)
	}
	for name, ns := range t.namespaces {
		for podName, p := range ns.pods {
			if p.pass != t.pass {
				t.forget(name, podName)
			}
		}
	}
}

// pod returns the Pod of a name, nil if it is not tracked.
func (t *Tally) pod(namespace podstate.Namespace, name string) *pod {
	if ns := t.namespaces[namespace]; ns != nil {
		return ns.pods[name]
	}
	return nil
}

func (t *Tally) forget(namespace podstate.Namespace, name string) {
	p := t.pod(namespace, name)
	if p == nil {
		return
	}
	for _, m := range p.members {
		t.leave(m, true)
	}
	t.bytes -= len(p.members) * memberBytes
	t.weigh(p.record, nil)
	delete(t.settling, p)
	pods := t.namespaces[namespace].pods
	delete(pods, name)
	t.pods--
	if len(pods) == 0 {
		delete(t.namespaces, namespace)
	}
}

// weigh updates Bytes and Uncounted for a record that replaces another; nil means no record.
func (t *Tally) weigh(from, to *podstate.Record) {
	if from != nil {
		t.bytes -= from.Bytes()
		if from.TooLarge {
			t.uncounted--
		}
	}
	if to != nil {
		t.bytes += to.Bytes()
		if to.TooLarge {
			t.uncounted++
		}
	}
	if from != nil && to != nil && from.Labels == to.Labels {
		return
	}
	if to != nil {
		if t.labels[to.Labels]++; t.labels[to.Labels] == 1 {
			t.bytes += to.Labels.Bytes()
		}
	}
	if from != nil {
		if t.labels[from.Labels]--; t.labels[from.Labels] == 0 {
			t.bytes -= from.Labels.Bytes()
			delete(t.labels, from.Labels)
		}
	}
}

func (t *Tally) namespace(name podstate.Namespace) *namespace {
	ns, ok := t.namespaces[name]
	if !ok {
		ns = &namespace{name: name.Value(), pods: make(map[string]*pod)}
		ns.labels = namespaceLabels(t.snapshot, ns.name)
		t.namespaces[name] = ns
	}
	return ns
}

// SetSnapshot sets the current snapshot. It visits all Pods if a SidecarSet was added,
// removed or changed; the Pods of a namespace if its labels changed; and no Pods
// otherwise.
func (t *Tally) SetSnapshot(next *match.Snapshot) {
	change := t.setPrograms(next)
	t.snapshot = next
	for _, ns := range t.namespaces {
		before := ns.labels
		ns.labels = namespaceLabels(next, ns.name)
		switch {
		case change == selectionChanged || !maps.Equal(before, ns.labels):
			t.reselect(ns)
		case change == comparisonChanged:
			for _, p := range ns.pods {
				t.recount(p)
			}
		}
	}
}

// setPrograms sets the Programs of a snapshot, and returns what may have changed for
// the Pods.
func (t *Tally) setPrograms(next *match.Snapshot) change {
	worst := nothingChanged
	left := maps.Clone(t.sets)
	for _, program := range next.Programs() {
		name := program.Name()
		delete(left, name)
		s, known := t.sets[name]
		if known && s.program.Set.UID != program.Set.UID { // it was deleted and created again
			t.drop(s)
			known = false
		}
		if !known {
			s = newSidecarSet(name)
			t.sets[name] = s
		}
		if s.program == program {
			continue
		}
		before := s.program
		worst = max(worst, s.set(program))
		if before == nil || contentIDOf(before) != contentIDOf(program) {
			s.since = 0
			t.unrecorded = append(t.unrecorded, s)
		}
		if before != nil && !renewsAlike(before, program) && t.recreates() {
			worst = max(worst, comparisonChanged)
		}
		t.touch(s)
		t.markDue(s)
	}
	for _, s := range left {
		t.drop(s)
		worst = selectionChanged
	}
	return worst
}

// recreates reports whether a SidecarSet asks for evictions.
func (t *Tally) recreates() bool {
	for _, s := range t.sets {
		if s.mode != recreate.Never {
			return true
		}
	}
	return false
}

// drop forgets a SidecarSet that is gone. Its Pods are to be selected again.
func (t *Tally) drop(s *sidecarSet) {
	s.removed = true
	t.touch(s)
	delete(t.sets, s.label)
}

// namespaceLabels returns the labels of a Namespace as the snapshot knows them.
// If it does not know the Namespace yet, the name is the only certain label;
// SetSnapshot corrects the counters when the Namespace arrives.
func namespaceLabels(snapshot *match.Snapshot, namespace string) labels.Set {
	if snapshot != nil {
		if set, ok := snapshot.NamespaceLabels(namespace); ok {
			return set
		}
	}
	return labels.Set{corev1.LabelMetadataName: namespace}
}

// reselect asks the snapshot again for all Pods of a namespace, once per set of
// labels.
func (t *Tally) reselect(ns *namespace) {
	known := make(map[podstate.LabelSet][]*sidecarSet)
	for _, p := range ns.pods {
		if p.record.TooLarge {
			continue
		}
		sets, ok := known[p.record.Labels]
		if !ok {
			sets = t.selecting(ns, p.record.Labels)
			known[p.record.Labels] = sets
		}
		t.assign(p, sets)
	}
}

// selecting returns the SidecarSets that select Pods with these labels.
func (t *Tally) selecting(ns *namespace, set podstate.LabelSet) []*sidecarSet {
	if t.snapshot == nil {
		return nil
	}
	selection, err := t.snapshot.Select(ns.name, set.Labels(), func(string) (labels.Set, error) { return ns.labels, nil })
	if err != nil || len(selection.Programs) == 0 { // the only possible error is that of the given function
		return nil
	}
	sets := make([]*sidecarSet, len(selection.Programs))
	for i, program := range selection.Programs {
		sets[i] = t.sets[program.Name()]
	}
	return sets
}

// assign sets the SidecarSets that select a Pod.
func (t *Tally) assign(p *pod, sets []*sidecarSet) {
	members := make([]*membership, 0, len(sets))
	for _, m := range p.members {
		if slices.Contains(sets, m.set) {
			members = append(members, m)
		} else {
			t.leave(m, false)
		}
	}
	for _, s := range sets {
		if !slices.ContainsFunc(members, func(m *membership) bool { return m.set == s }) {
			members = append(members, &membership{set: s, pod: p})
		}
	}
	t.bytes += (len(members) - len(p.members)) * memberBytes
	if p.members = members; len(members) == 0 {
		p.members = nil
	}
	t.recount(p)
}

// leave ends a membership. gone: the Pod has ended, or is about to.
func (t *Tally) leave(m *membership, gone bool) {
	t.unfollow(m, gone)
	t.move(m, 0)
	t.swapRevision(m, recorded{})
}

// recount updates the SidecarSets that select a Pod from its current record.
func (t *Tally) recount(p *pod) {
	if at := p.record.ChangesAt(t.now); at != 0 {
		t.settling[p] = at
	} else if len(t.settling) > 0 {
		delete(t.settling, p)
	}
	for _, m := range p.members {
		t.recountOne(m)
	}
}

func (t *Tally) recountOne(m *membership) {
	s, r := m.set, m.pod.record
	now := s.content.Count(r, t.now)
	if now&inplace.Lacking != 0 && !t.expected(m) {
		now = 0
	}
	t.move(m, now)
	if now&inplace.Lacking != 0 {
		if why := s.content.WhyLacking(r); why != m.why {
			m.why = why
			t.alter(s)
		}
	}
	t.swapRevision(m, s.recordedBy(r, now))
	t.follow(m)
}

// move counts a Pod as it counts now.
func (t *Tally) move(m *membership, to inplace.Count) {
	if m.count == to {
		return
	}
	s := m.set
	s.counters.add(m.count, -1)
	s.counters.add(to, 1)
	m.count = to
	s.setLacking(m, to&inplace.Lacking != 0)
	t.touch(s)
}

// swapRevision counts a Pod under what it records now.
func (t *Tally) swapRevision(m *membership, now recorded) {
	if m.recorded == now {
		return
	}
	m.set.addRevision(m.recorded, -1)
	m.set.addRevision(now, 1)
	m.recorded = now
	t.alter(m.set)
}

// expected reports whether a Pod that a SidecarSet selects should carry it. It should
// not if the Pod is not eligible for injection, or carries a canary of the SidecarSet
// instead.
func (t *Tally) expected(m *membership) bool {
	p := m.pod
	return t.excluded.Eligible(p.record.Namespace.Value(), p.record.Facts.Mirror) && !p.replaces(m.set, len(p.members))
}

// replaces reports whether the Pod carries a canary of the SidecarSet, or a
// canary of that. The depth ends the search among canaries of each other.
func (p *pod) replaces(s *sidecarSet, depth int) bool {
	return depth > 0 && slices.ContainsFunc(p.members, func(other *membership) bool {
		if other.set.content.Base() != s.name {
			return false
		}
		_, injected := p.record.Injection(other.set.name)
		return injected || p.replaces(other.set, depth-1)
	})
}

// alter marks a SidecarSet as changed, in something that is not in its Count.
func (t *Tally) alter(s *sidecarSet) {
	s.alterations++
	t.touch(s)
}

func (t *Tally) touch(s *sidecarSet) {
	if !s.touched {
		s.touched = true
		t.touched = append(t.touched, s)
	}
}
