// Package tally counts the Pods of each SidecarSet. It keeps a record of every active
// Pod, and counters per SidecarSet, which each event changes by the difference. So the
// cost of an event is proportional to the number of SidecarSets of its Pod, and does
// not depend on the number of Pods. The snapshot that admission uses decides which
// SidecarSets select a Pod. For the rollout, package rollout looks at all Pods of a
// SidecarSet. The package knows nothing about where Pods come from or
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
	"github.com/sidecarset/operator/internal/rollout"
)

// Tally holds the records and the counters. It belongs to one goroutine: no
// method may run at the same time as another.
type Tally struct {
	excluded   inject.Exclusions
	snapshot   *match.Snapshot
	sets       map[string]*sidecarSet
	namespaces map[podstate.Namespace]*namespace
	nodes      map[podstate.Name]inplace.Node // nil: not known yet

	pods, uncounted int

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
	buffer   []*rollout.Pod
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
}

// member returns the membership of a SidecarSet that selects the Pod.
func (p *pod) member(s *sidecarSet) *membership {
	for _, m := range p.members {
		if m.set == s {
			return m
		}
	}
	return nil
}

// membership is all that is known of one Pod and one SidecarSet that selects it.
type membership struct {
	rollout.Pod
	set   *sidecarSet
	part  contribution
	sent  *sent // nil: no write is under way
	place int32 // in the SidecarSet's members
	// mislabelled: the condition SidecarSetUpgradable of the Pod is to be written.
	mislabelled bool
	refusals    uint8 // of the Pod's last writes, one after another; 10 stands for more
}

// New returns a Tally without Pods and SidecarSets. API servers never send Pods of the excluded
// namespaces to the operator, so these do not count as uninjected. Injected Pods count as elsewhere.
func New(excluded inject.Exclusions) *Tally {
	return &Tally{
		excluded:   excluded,
		sets:       make(map[string]*sidecarSet),
		namespaces: make(map[podstate.Namespace]*namespace),
		settling:   make(map[*pod]int64),
	}
}

// Pods is the number of Pods that are tracked.
func (t *Tally) Pods() int { return t.pods }

// Uncounted is the number of tracked Pods that are in no counter, because their records
// would be too large. It is unknown whether a SidecarSet selects them.
func (t *Tally) Uncounted() int { return t.uncounted }

// Changed calls report with the name of each SidecarSet whose State or plan may have changed, or
// that was removed, since the last call.
func (t *Tally) Changed(report func(sidecarSet string)) {
	for i, s := range t.touched {
		t.touched[i] = nil
		s.touched = false
		report(s.label)
	}
	t.touched = t.touched[:0]
}

// Set adds a Pod or replaces its record. A Pod that is not active is removed.
func (t *Tally) Set(r *podstate.Record) {
	if !r.Active {
		t.forget(r.Namespace, r.Name, !r.Succeeded)
		return
	}
	ns := t.namespace(r.Namespace)
	p, known := ns.pods[r.Name]
	if known && p.record.UID != r.UID {
		t.forget(r.Namespace, r.Name, true)
		ns, known = t.namespace(r.Namespace), false
	}
	if !known {
		p = &pod{}
		ns.pods[r.Name] = p
		t.pods++
	}
	before := p.record
	p.record, p.pass = r, t.pass
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
		t.forget(r.Namespace, r.Name, true)
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
				t.forget(name, podName, true)
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

// forget removes a Pod. lost: it has ended without having done its task, or is about to.
func (t *Tally) forget(namespace podstate.Namespace, name string, lost bool) {
	p := t.pod(namespace, name)
	if p == nil {
		return
	}
	for _, m := range p.members {
		if m.Dead = t.isDead(m.Record); lost && !m.Dead && m.part.count&inplace.Matched != 0 && m.set.strategy.Updates() && m.IsCharged(m.set.strategy, t.now) {
			m.set.status = m.set.status.Lose(t.now)
		}
		t.leave(m)
	}
	t.weigh(p.record, nil)
	delete(t.settling, p)
	pods := t.namespaces[namespace].pods
	delete(pods, name)
	t.pods--
	if len(pods) == 0 {
		delete(t.namespaces, namespace)
	}
}

// weigh counts a record that replaces another, if it is too large; nil means no record.
func (t *Tally) weigh(from, to *podstate.Record) {
	if from != nil && from.TooLarge {
		t.uncounted--
	}
	if to != nil && to.TooLarge {
		t.uncounted++
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
			t.unrecorded = append(t.unrecorded, s)
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
			t.leave(m)
		}
	}
	for _, s := range sets {
		if !slices.ContainsFunc(members, func(m *membership) bool { return m.set == s }) {
			m := &membership{set: s, place: int32(len(s.members))}
			s.members, members = append(s.members, m), append(members, m)
		}
	}
	if p.members = members; len(members) == 0 {
		p.members = nil
	}
	t.recount(p)
}

// leave ends a membership.
func (t *Tally) leave(m *membership) {
	s := m.set
	s.add(m.part, -1)
	last := s.members[len(s.members)-1]
	s.members[m.place], last.place = last, m.place
	s.members[len(s.members)-1] = nil
	s.members = s.members[:len(s.members)-1]
	m.sent = nil // the result of a Task that is under way is dropped
	t.touch(s)
	t.markDue(s)
}

// recount updates the SidecarSets that select a Pod from its current record.
func (t *Tally) recount(p *pod) {
	if at := p.record.ChangesAt(t.now); at != 0 {
		t.settling[p] = at
	} else if len(t.settling) > 0 {
		delete(t.settling, p)
	}
	for _, m := range p.members {
		m.Record = p.record
	}
	for _, m := range p.members {
		t.recountOne(m)
	}
}

// recountOne compares a Pod with the content of a SidecarSet, and counts it.
func (t *Tally) recountOne(m *membership) {
	s, r := m.set, m.Record
	verdict, mattered := m.Verdict, m.Matters()
	m.Verdict, m.Written, m.Resets = s.content.Judge(r, t.nodes[r.Node]), s.content.Written(r), s.content.Resets(r)
	m.Carries = m.Verdict.Way == inplace.Current || m.Verdict.Moves
	m.Trouble, m.Sidecar = s.content.Trouble(r)
	m.Traits = nil
	if s.strategy.LooksAtLabels() {
		m.Traits = s.strategy.TraitsOf(r.Labels.Labels())
	}
	if m.Rest != nil && m.Verdict != verdict && m.Rest.Reason != inplace.WriteUndone {
		m.Rest = nil
	}
	was := m.part
	m.part = contribution{count: s.content.Count(r, t.now)}
	if m.part.count&inplace.Lacking != 0 && !t.expected(m) {
		m.part.count = 0
	}
	if m.part.count&inplace.Matched != 0 {
		in, _ := r.Injection(s.name)
		m.mislabelled = s.isMislabelled(m, t.now)
		m.part.revision, m.part.differs = in.Revision, s.content.Differs(r)
		m.part.task = s.strategy.Updates() && (m.CanBeWritten() || m.mislabelled)
	} else {
		m.mislabelled = false
	}
	if was != m.part {
		s.add(was, -1)
		s.add(m.part, 1)
	}
	if was != m.part || mattered || m.Matters() {
		t.touch(s)
	}
	if s.tasks > 0 {
		t.markDue(s)
	}
}

// expected reports whether a Pod that a SidecarSet selects should carry it. It should
// not if the Pod is not eligible for injection, or carries a canary of the SidecarSet
// instead.
func (t *Tally) expected(m *membership) bool {
	p := t.pod(m.Record.Namespace, m.Record.Name)
	return t.excluded.Eligible(m.Record.Namespace.Value(), m.Record.Facts.Mirror) && !p.replaces(m.set, len(p.members))
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

func (t *Tally) touch(s *sidecarSet) {
	if !s.touched {
		s.touched = true
		t.touched = append(t.touched, s)
	}
}
