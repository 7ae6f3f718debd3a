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
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/recreate"
)

// Counters are the numbers of one SidecarSet's status.
type Counters struct {
	// Matched Pods are selected, active, have the SidecarSet in their injected
	// list and contain all its sidecars.
	Matched int32
	// Updated Pods are matched and carry the current hash.
	Updated int32
	// Ready Pods are matched, ready, and run the images they were given.
	Ready int32
	// UpdatedReady Pods are both Updated and Ready.
	UpdatedReady int32
	// Uninjected Pods are selected and active and lack a sidecar, or do not have
	// the SidecarSet in their injected list, although admission would have
	// injected it. Native sidecars count among the sidecars.
	Uninjected int32
}

// Count is the counters of one SidecarSet and the Program that they were
// computed with, whose generation they are about.
type Count struct {
	Counters
	Program *inject.Program
}

// Options configure a Tally.
type Options struct {
	// ExcludedNamespaces are the namespaces whose Pods API servers never send to the
	// operator. Their Pods do not count as uninjected. Injected Pods count as
	// elsewhere.
	ExcludedNamespaces []string
	// Replacements are the times that replacements of evicted Pods may take.
	Replacements recreate.Timeouts
}

// Tally holds the records and the counters. It belongs to one goroutine: no
// method may run at the same time as another.
type Tally struct {
	excluded   inject.Exclusions
	timeouts   recreate.Timeouts
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
	// settling Pods change at a known time without an event.
	settling map[*pod]struct{}

	// now is the current time, and began the time of the first list of Pods, in seconds.
	now, began int64
	// recreating are the SidecarSets that have Pods to evict or wait for replacements.
	recreating map[*sidecarSet]struct{}
	// leaving are Pods that are being deleted and were evicted before this Tally
	// decided about evictions.
	leaving map[types.UID]*podstate.Record
}

type namespace struct {
	name   string
	labels labels.Set
	pods   map[string]*pod
}

type pod struct {
	record *podstate.Record
	shares []share
	pass   uint32
	// lost: the Node is lost, and no event of the Pod came after that. suspect: the Pod
	// has not been ready since it was lost.
	lost, suspect bool
	fresh         bool // true while its first record is processed
}

const shareBytes = 40

// share is what a Pod contributes to a SidecarSet that selects it. Groups have pointers
// to it, so it must not move in memory while it is in a group.
type share struct {
	set      *sidecarSet
	pod      *pod
	recorded recorded
	verdict  verdict
	concern  concern
	place    int32 // index in the group of that concern
	away     bool  // it replaces a Pod that was evicted for an older content, and was never available
	tenure
	part
}

// New returns a Tally without Pods and SidecarSets.
func New(o Options) *Tally {
	return &Tally{
		excluded:   o.ExcludedNamespaces,
		timeouts:   o.Replacements,
		sets:       make(map[string]*sidecarSet),
		namespaces: make(map[podstate.Namespace]*namespace),
		labels:     make(map[podstate.LabelSet]int32),
		settling:   make(map[*pod]struct{}),
		recreating: make(map[*sidecarSet]struct{}),
		leaving:    make(map[types.UID]*podstate.Record),
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
		t.leave(r)
		return
	}
	r = r.At(time.Unix(t.now, 0)) // an event must not undo a change that came without an event
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
	p.record, p.pass, p.lost, p.suspect = r, t.pass, false, p.suspect && !r.Ready
	p.fresh = !known
	t.weigh(before, r)
	t.noteSettling(p)
	switch {
	case r.TooLarge:
		t.reassign(p, nil)
	case before == nil || before.TooLarge || before.Labels != r.Labels:
		t.reassign(p, t.selecting(ns, r.Labels))
	default:
		t.recount(p)
	}
	p.fresh = false
}

// Delete removes a Pod. A Pod with the same name and another UID stays.
func (t *Tally) Delete(r *podstate.Record) {
	if p := t.pod(r.Namespace, r.Name); p != nil && p.record.UID == r.UID {
		t.forget(r.Namespace, r.Name)
	}
	t.gone(r.UID)
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
	t.keep(records)
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
	t.assign(p, nil)
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
			s.ledger.Timeouts = t.timeouts
			t.sets[name] = s
		}
		if s.program != program {
			before := s.program
			if before == nil || before.HashWithoutImage != program.HashWithoutImage {
				s.contents = nil
			}
			if before == nil || before.Hash != program.Hash {
				clear(s.stuck)
			}
			if before == nil || contentIDOf(before) != contentIDOf(program) {
				t.unrecorded = append(t.unrecorded, s)
			}
			if len(t.recreating) > 0 && before != nil && !renewsAlike(before, program) {
				worst = max(worst, comparisonChanged)
			}
			worst = max(worst, s.set(program))
			if t.setRollout(s, program) {
				worst = max(worst, comparisonChanged)
			}
			t.touch(s)
		}
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
		t.reassign(p, sets)
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

// reassign is assign for a Pod that still exists: a SidecarSet that no longer selects
// it stops waiting for it as a replacement.
func (t *Tally) reassign(p *pod, sets []*sidecarSet) {
	for i := range p.shares {
		if s := p.shares[i].set; !slices.Contains(sets, s) && s.ledger.Forget(p.record.UID) {
			t.replace(s)
		}
	}
	t.assign(p, sets)
}

// assign sets the SidecarSets that select a Pod.
func (t *Tally) assign(p *pod, sets []*sidecarSet) {
	for i := range p.shares {
		sh := &p.shares[i]
		if !slices.Contains(sets, sh.set) {
			t.unfollow(p, sh)
		}
		t.count(sh, part{})
		t.move(sh.set, sh.verdict, 0)
		t.swapRevision(sh, recorded{})
		t.group(sh, none)
	}
	t.bytes += (len(sets) - len(p.shares)) * shareBytes
	if len(sets) == 0 {
		p.shares = nil
		return
	}
	shares := make([]share, len(sets))
	for i, s := range sets {
		before := p.shareOf(s)
		shares[i] = share{set: s, pod: p}
		if before != nil {
			shares[i].away, shares[i].tenure = before.away, before.tenure
		}
	}
	p.shares = shares
	t.recount(p)
}

// recount updates the counters of the SidecarSets that select a Pod from its current record.
func (t *Tally) recount(p *pod) {
	for i := range p.shares {
		sh := &p.shares[i]
		sh.observe(p.record.Progress(sh.set.name), t.now)
		now := sh.set.verdictOn(p.record)
		if now == uninjected && !t.expected(p, sh.set) {
			now = 0
		}
		t.move(sh.set, sh.verdict, now)
		sh.verdict = now
		t.swapRevision(sh, sh.set.recordedBy(p.record, now))
		t.follow(p, sh)
		t.group(sh, sh.set.concernOf(p.record, sh))
	}
}

func (t *Tally) move(s *sidecarSet, from, to verdict) {
	if from == to {
		return
	}
	s.counters.add(from, -1)
	s.counters.add(to, 1)
	if (from^to)&matched != 0 {
		t.recounted(s)
	}
	t.touch(s)
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
