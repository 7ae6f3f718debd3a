// Package tracker keeps what the leader knows of Pods: a summary of every active Pod, and which
// SidecarSets select it. An event computes what the rollout has to know of one Pod; its cost does
// not depend on the number of Pods. A Pass then looks at all Pods of one SidecarSet: it counts
// them, asks package rollout which of them to write, and hands these out. The snapshot that
// admission uses decides which SidecarSets select a Pod. The package knows nothing about where
// Pods come from or what is written to a status, and has no clock.
package tracker

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// Tracker holds the Pods. It belongs to one goroutine: no method may run at the same time as
// another.
type Tracker struct {
	excluded   inject.Exclusions
	snapshot   *match.Snapshot
	sets       map[string]*sidecarSet
	namespaces map[podstate.Namespace]*namespace
	nodes      map[podstate.Name]*node
	listed     bool // the Nodes: before that, no Node counts as gone

	pods, uncounted int

	// list is the number of the last Replace: Pods with an older one were not in its list.
	list  uint32
	dirty []*sidecarSet
	// watched is the resourceVersion up to which the Pod watch has delivered events.
	watched uint64
	now     int64 // the current time, in seconds

	// What the last Pass found, kept for the memory: the matched Pods, and those whose condition
	// SidecarSetUpgradable is to be written.
	matched     []*rollout.Pod
	mislabelled []*membership
}

type namespace struct {
	name   string
	labels labels.Set
	pods   map[string]*pod
}

type pod struct {
	record  *podstate.Summary
	members []*membership
	list    uint32
	place   int32 // in the Pods of its node
	node    *node // nil: it has none yet
}

// membership is all that is known of one Pod and one SidecarSet that selects it.
type membership struct {
	rollout.Pod
	pod      *pod
	set      *sidecarSet
	counts   counts
	sent     *sent // nil: no write is under way
	place    int32 // in the SidecarSet's members
	refusals uint8 // of the Pod's last writes, one after another; 10 stands for more
	// mislabelled: the condition SidecarSetUpgradable of the Pod is to be written, and labelled: it
	// was written for the current revision.
	mislabelled, labelled bool
}

// New returns a Tracker without Pods and SidecarSets. API servers never send Pods of the excluded
// namespaces to the operator, so these do not count as uninjected. Injected Pods count as elsewhere.
func New(excluded inject.Exclusions) *Tracker {
	return &Tracker{
		excluded:   excluded,
		sets:       make(map[string]*sidecarSet),
		namespaces: make(map[podstate.Namespace]*namespace),
		nodes:      make(map[podstate.Name]*node),
	}
}

// Pods is the number of Pods that are tracked.
func (t *Tracker) Pods() int { return t.pods }

// Uncounted is the number of tracked Pods that are in no counter, because their summaries
// would be too large. It is unknown whether a SidecarSet selects them.
func (t *Tracker) Uncounted() int { return t.uncounted }

// SetTime sets the current time.
func (t *Tracker) SetTime(now time.Time) { t.now = now.Unix() }

// Changed calls report with the name of each SidecarSet whose next Pass may differ, or that was
// removed, since the last call. edited: it was compiled again.
func (t *Tracker) Changed(report func(sidecarSet string, edited bool)) {
	for i, s := range t.dirty {
		t.dirty[i] = nil
		edited := s.edited && !s.removed
		s.dirty, s.edited = false, false
		report(s.label, edited)
	}
	t.dirty = t.dirty[:0]
}

func (t *Tracker) markDirty(s *sidecarSet) {
	if !s.dirty {
		s.dirty = true
		t.dirty = append(t.dirty, s)
	}
}

// Set adds a Pod or replaces its summary. A Pod that is not active is removed.
func (t *Tracker) Set(r *podstate.Summary) {
	if !r.Active {
		t.forget(r.Namespace, r.Name, &ending{failed: r.Failed, succeeded: r.Succeeded})
		return
	}
	ns := t.namespace(r.Namespace)
	p, known := ns.pods[r.Name]
	if known && p.record.UID != r.UID {
		t.forget(r.Namespace, r.Name, &ending{})
		ns, known = t.namespace(r.Namespace), false
	}
	if !known {
		p = &pod{}
		ns.pods[r.Name] = p
		t.pods++
	}
	before := p.record
	p.record, p.list = r, t.list
	t.weigh(before, r)
	t.place(p, r.Node)
	if before != nil && before.Node != r.Node { // Pods without a node, and those on dead nodes, are counted differently
		for _, m := range p.members {
			t.markDirty(m.set)
		}
	}
	switch {
	case r.TooLarge:
		t.assign(p, nil)
	case before == nil || before.TooLarge || before.Labels != r.Labels:
		t.assign(p, t.selecting(ns, r.Labels))
	default:
		t.judge(p)
	}
}

// Delete removes a Pod. A Pod with the same name and another UID stays.
func (t *Tracker) Delete(r *podstate.Summary) {
	if p := t.pod(r.Namespace, r.Name); p != nil && p.record.UID == r.UID {
		t.forget(r.Namespace, r.Name, &ending{})
	}
}

// Replace makes the given Pods the only ones.
func (t *Tracker) Replace(records []*podstate.Summary) {
	t.list++
	for _, r := range records {
		t.Set(r)
	}
	for name, ns := range t.namespaces {
		for podName, p := range ns.pods {
			if p.list != t.list {
				t.forget(name, podName, &ending{})
			}
		}
	}
}

// Watched is called when the Pod watch has delivered all events up to a
// resourceVersion, and Set or Delete was called for each.
func (t *Tracker) Watched(version uint64) { t.watched = max(t.watched, version) }

// pod returns the Pod of a name, nil if it is not tracked.
func (t *Tracker) pod(namespace podstate.Namespace, name string) *pod {
	if ns := t.namespaces[namespace]; ns != nil {
		return ns.pods[name]
	}
	return nil
}

// ending is how a Pod ends.
type ending struct{ failed, succeeded bool }

// forget removes a Pod that ends, or is about to.
func (t *Tracker) forget(namespace podstate.Namespace, name string, end *ending) {
	p := t.pod(namespace, name)
	if p == nil {
		return
	}
	for _, m := range p.members {
		if m.Dead = p.isDead(t); !end.succeeded && m.counts.is&inplace.Matched != 0 && m.set.strategy.Updates() {
			m.set.status = m.set.status.Disappear(&m.Pod, m.set.strategy, end.failed, m.set.available, t.now)
		}
		t.leave(m)
	}
	t.weigh(p.record, nil)
	t.place(p, 0)
	pods := t.namespaces[namespace].pods
	delete(pods, name)
	t.pods--
	if len(pods) == 0 {
		delete(t.namespaces, namespace)
	}
}

// weigh counts a summary that replaces another, if it is too large; nil means no summary.
func (t *Tracker) weigh(from, to *podstate.Summary) {
	if from != nil && from.TooLarge {
		t.uncounted--
	}
	if to != nil && to.TooLarge {
		t.uncounted++
	}
}

func (t *Tracker) namespace(name podstate.Namespace) *namespace {
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
func (t *Tracker) SetSnapshot(next *match.Snapshot) {
	change := t.setSidecarSets(next)
	t.snapshot = next
	for _, ns := range t.namespaces {
		before := ns.labels
		ns.labels = namespaceLabels(next, ns.name)
		switch {
		case change == selectionChanged || !maps.Equal(before, ns.labels):
			t.reselect(ns)
		case change == comparisonChanged:
			for _, p := range ns.pods {
				t.judge(p)
			}
		}
	}
}

// setSidecarSets sets the compiled SidecarSets of a snapshot, and returns what may have changed for
// the Pods.
func (t *Tracker) setSidecarSets(next *match.Snapshot) change {
	worst := nothingChanged
	left := maps.Clone(t.sets)
	for _, compiled := range next.SidecarSets() {
		name := compiled.Name()
		delete(left, name)
		s, known := t.sets[name]
		if known && s.compiled.Set.UID != compiled.Set.UID { // it was deleted and created again
			t.drop(s)
			known = false
		}
		if !known {
			s = newSidecarSet(name)
			t.sets[name] = s
		}
		if s.compiled != compiled {
			worst = max(worst, s.set(compiled))
			s.edited = true
			t.markDirty(s)
		}
	}
	for _, s := range left {
		t.drop(s)
		worst = selectionChanged
	}
	return worst
}

// drop forgets a SidecarSet that is gone. Its Pods are to be selected again.
func (t *Tracker) drop(s *sidecarSet) {
	s.removed = true
	t.markDirty(s)
	delete(t.sets, s.label)
}

// namespaceLabels returns the labels of a Namespace as the snapshot knows them.
// If it does not know the Namespace yet, the name is the only certain label;
// SetSnapshot corrects that when the Namespace arrives.
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
func (t *Tracker) reselect(ns *namespace) {
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
func (t *Tracker) selecting(ns *namespace, set podstate.LabelSet) []*sidecarSet {
	if t.snapshot == nil {
		return nil
	}
	selection, err := t.snapshot.Select(ns.name, set.Labels(), func(string) (labels.Set, error) { return ns.labels, nil })
	if err != nil || len(selection.SidecarSets) == 0 { // the only possible error is that of the given function
		return nil
	}
	sets := make([]*sidecarSet, len(selection.SidecarSets))
	for i, compiled := range selection.SidecarSets {
		sets[i] = t.sets[compiled.Name()]
	}
	return sets
}

// assign sets the SidecarSets that select a Pod.
func (t *Tracker) assign(p *pod, sets []*sidecarSet) {
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
			m := &membership{pod: p, set: s, place: int32(len(s.members))}
			s.members, members = append(s.members, m), append(members, m)
			t.markDirty(s)
		}
	}
	if p.members = members; len(members) == 0 {
		p.members = nil
	}
	t.judge(p)
}

// leave ends a membership.
func (t *Tracker) leave(m *membership) {
	s := m.set
	last := s.members[len(s.members)-1]
	s.members[m.place], last.place = last, m.place
	s.members[len(s.members)-1] = nil
	s.members = s.members[:len(s.members)-1]
	s.end(m) // the result of a write that is under way is dropped
	t.markDirty(s)
}

// judge compares a Pod with the SidecarSets that select it.
func (t *Tracker) judge(p *pod) {
	for _, m := range p.members {
		m.Summary = p.record
	}
	for _, m := range p.members {
		t.judgeOne(m)
	}
}

// judgeOne computes what a Pass has to know of a Pod and a SidecarSet.
func (t *Tracker) judgeOne(m *membership) {
	p, s, r := m.pod, m.set, m.Summary
	verdict, before, mattered := m.Verdict, m.counts, m.Matters()
	m.Verdict, m.Written, m.Resets = s.revision.Judge(r, p.nodeState()), s.revision.Written(r), s.revision.Resets(r)
	m.Updated = m.Verdict.Method == inplace.Current || m.Verdict.Moves
	m.Trouble, m.Sidecar = s.revision.Trouble(r)
	m.Traits = nil
	if s.strategy.LooksAtLabels() {
		m.Traits = s.strategy.TraitsOf(r.Labels.Labels())
	}
	if m.Backoff != nil && m.Verdict != verdict && m.Backoff.Reason != inplace.WriteReverted {
		m.Backoff = nil
	}
	m.noteUndone()
	m.setNew()
	m.counts = s.countsOf(r)
	if m.counts.is&inplace.Uninjected != 0 && !t.expected(p, s) {
		m.counts.is = 0
	}
	m.mislabelled = s.isMislabelled(m)
	if before != m.counts || mattered || m.Matters() {
		t.markDirty(s)
	}
}

// noteUndone finds out whether another program has taken the operator's update back. It may have removed
// the record of the update, too.
func (m *membership) noteUndone() {
	if m.Verdict.Method == inplace.Current {
		m.Undone = podstate.Undone{At: m.Written.At, StateBefore: m.Written.StateBefore}
	} else if undone := m.set.revision.Undone(m.Summary); undone.At != 0 {
		m.Undone = undone
	}
}

// setNew sets whether the Pod has what new Pods get instead of the current revision.
func (m *membership) setNew() {
	in, _ := m.Summary.Injection(m.set.name)
	m.AsNew = m.set.newPods != 0 && in.Revision == m.set.newPods
}

// expected reports whether a Pod that a SidecarSet selects should have it. It should
// not if the Pod is not eligible for injection, or has a canary of the SidecarSet
// instead.
func (t *Tracker) expected(p *pod, s *sidecarSet) bool {
	r := p.record
	return t.excluded.Eligible(r.Namespace.Value(), r.Facts.Mirror) && !slices.ContainsFunc(p.members, func(other *membership) bool {
		_, injected := r.Injection(other.set.name)
		return injected && other.set.revision.Base() == s.name
	})
}
