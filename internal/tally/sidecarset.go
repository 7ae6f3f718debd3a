package tally

import (
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
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

func (c *Counters) add(count inplace.Count, n int32) {
	if count&inplace.Matched != 0 {
		c.Matched += n
	}
	if count&inplace.Updated != 0 {
		c.Updated += n
	}
	if count&inplace.Ready != 0 {
		c.Ready += n
	}
	if both := inplace.Updated | inplace.Ready; count&both == both {
		c.UpdatedReady += n
	}
	if count&inplace.Lacking != 0 {
		c.Uninjected += n
	}
}

// Count is the counters of one SidecarSet and the Program that they were
// computed with, whose generation they are about.
type Count struct {
	Counters
	Program *inject.Program
}

// sidecarSet is what is known of one SidecarSet: its counters, and the rollout of its content.
type sidecarSet struct {
	label   string // its name
	name    podstate.Name
	program *inject.Program
	content *inplace.Content

	counters  Counters
	revisions map[podstate.Name]RevisionCount
	// lacking are the memberships of Pods that count as uninjected.
	lacking []*membership
	// differing is the number of Pods whose recorded content differs in more than images.
	differing int

	rollout *rollout.Rollout // nil if updateStrategy.type is NotUpdate
	// recorded is the last content that SetCurrent was called for.
	recorded contentID
	// mode says which Pods are evicted, and since is the first second after the content became
	// current; 0 if that is not known.
	mode  recreate.Mode
	since int64
	// labelled selects the Pods whose condition SidecarSetUpgradable may be set to false; nil for
	// none.
	labelled labels.Selector
	// resets are Pods whose hot upgrade has to be ended, and labels those whose condition
	// SidecarSetUpgradable has a wrong value.
	resets, labels chores

	// alterations counts changes that are not in the counters.
	alterations         uint64
	reported            reported
	touched, dueChanged bool
	removed             bool
}

func newSidecarSet(name string) *sidecarSet {
	return &sidecarSet{label: name, name: podstate.MakeName(name), revisions: map[podstate.Name]RevisionCount{}, resets: chores{}, labels: chores{}}
}

// reported is the state at the last report by Changed.
type reported struct {
	Count
	alterations uint64
}

// change is how many Pods a new Program may affect.
type change int

const (
	nothingChanged    change = iota
	comparisonChanged        // the same Pods are selected, but they may count differently
	selectionChanged         // other Pods may be selected
)

// set sets a new Program, and returns what changed for the Pods.
func (s *sidecarSet) set(program *inject.Program) change {
	old, was, now := s.program, s.content, inplace.ContentOf(program)
	if old != nil && old.HashWithoutImage == program.HashWithoutImage {
		now = now.With(was.Differences())
	}
	s.program, s.content = program, now
	differs := s.setRollout()
	switch {
	case old == nil || !sameSelection(old, program):
		return selectionChanged
	case differs || !now.Equal(was):
		return comparisonChanged
	}
	return nothingChanged
}

func sameSelection(a, b *inject.Program) bool {
	return reflect.DeepEqual(a.Set.Spec.Selector, b.Set.Spec.Selector) &&
		reflect.DeepEqual(a.Set.Spec.NamespaceSelector, b.Set.Spec.NamespaceSelector)
}

// setRollout sets what the update strategy and the annotations of the Program say. It returns
// true if the Pods may count differently because of it.
func (s *sidecarSet) setRollout() (differs bool) {
	update := &s.program.Set.Spec.UpdateStrategy
	off := update.Type == appsv1beta1.NotUpdateSidecarSetStrategyType
	labelled, mode := s.labelled, s.mode
	switch {
	case off || update.Paused:
		s.labelled = nil
	case update.Selector == nil:
		s.labelled = labels.Everything()
	default:
		s.labelled, _ = metav1.LabelSelectorAsSelector(update.Selector) // nil if it cannot be used
	}
	if s.mode = recreate.Never; !off {
		s.mode, _ = recreate.ModeOf(s.program.Set.Annotations) // with an error, it is Never
	}
	had := s.rollout != nil
	switch {
	case off:
		s.rollout = nil
	case !had:
		s.rollout = rollout.New()
	}
	if s.rollout != nil {
		s.rollout.SetStrategy(rollout.NewStrategy(s.program.Set))
		s.rollout.SetContent(s.program.Hash, nil)
	}
	return had == off || mode != s.mode || !reflect.DeepEqual(labelled, s.labelled)
}

// contentID identifies a content and its ControllerRevision. Contents that differ in
// volumes alone have one hash and two ControllerRevisions.
type contentID struct{ hash, revision string }

func contentIDOf(p *inject.Program) contentID { return contentID{p.Hash, p.Revision()} }

// isRecorded reports whether a ControllerRevision records the content of the Program, under
// the name that Pods with this content will record.
func (s *sidecarSet) isRecorded() bool { return s.recorded == contentIDOf(s.program) }

// Groups are the Pods of a SidecarSet that a user may want to look at. A group names its first
// Pods in the order of names.
type Groups struct {
	// Uninjected are the Pods that Counters.Uninjected counts, by why they are not injected.
	Uninjected []appsv1beta1.SidecarSetPodGroup
}

func (s *sidecarSet) uninjected() []appsv1beta1.SidecarSetPodGroup {
	var groups rollout.Groups
	for _, m := range s.lacking {
		groups.Add(m.why, "", m.pod.record.Namespace.Value()+"/"+m.pod.record.Name)
	}
	return groups.List()
}

// setLacking adds a membership to the lacking ones, or removes it.
func (s *sidecarSet) setLacking(m *membership, is bool) {
	switch {
	case is == (m.lacking != 0):
	case is:
		s.lacking = append(s.lacking, m)
		m.lacking = int32(len(s.lacking))
	default:
		last := s.lacking[len(s.lacking)-1]
		s.lacking[m.lacking-1], last.lacking = last, m.lacking
		s.lacking[len(s.lacking)-1] = nil
		s.lacking, m.lacking = s.lacking[:len(s.lacking)-1], 0
	}
}

// RevisionCount counts the matched Pods that record one ControllerRevision.
type RevisionCount struct{ Pods, Ready int32 }

// recorded is what a matched Pod records: a ControllerRevision, and whether the
// Pod is ready. The zero value records none.
type recorded struct {
	revision podstate.Name
	ready    bool
}

// recordedBy returns what a Pod records, given how it counts.
func (s *sidecarSet) recordedBy(r *podstate.Record, c inplace.Count) recorded {
	if c&inplace.Matched == 0 {
		return recorded{}
	}
	in, _ := r.Injection(s.name)
	return recorded{in.Revision, c&inplace.Ready != 0}
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

// State is what is known of one SidecarSet's Pods.
type State struct {
	// Known is false if the current snapshot does not have the SidecarSet. The other
	// fields are then zero, except that the Limit of Rollout is NotUpdate.
	Known bool
	Count
	Groups Groups
	// Revisions counts matched Pods by the name of the ControllerRevision that they
	// record. Pods that record none are not in it. The caller must not change it.
	Revisions map[podstate.Name]RevisionCount
	// Rollout is the state of the rollout. For NotUpdate, it has only that Limit.
	Rollout rollout.Report
	// Content has no Differences if SetDifferences has not been called for it.
	Content *inplace.Content
	// Differs: a Pod records a content that differs in more than images.
	Differs bool
}

// State returns what is known of a SidecarSet's Pods. It looks at all Pods of the rollout.
func (t *Tally) State(sidecarSet string) State {
	state := State{Rollout: rollout.Report{Limit: rollout.NotUpdate}}
	s, ok := t.sets[sidecarSet]
	if !ok {
		return state
	}
	state.Known, state.Count = true, Count{s.counters, s.program}
	state.Groups, state.Content, state.Differs = Groups{s.uninjected()}, s.content, s.differing > 0
	state.Revisions = make(map[podstate.Name]RevisionCount, len(s.revisions))
	for name, count := range s.revisions {
		state.Revisions[name] = count
	}
	if s.rollout != nil {
		state.Rollout = s.rollout.Report(t.watched, time.Unix(t.now, 0))
	}
	return state
}
