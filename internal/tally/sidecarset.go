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
	"github.com/sidecarset/operator/internal/rollout"
)

// Counters are the numbers of one SidecarSet's status.
type Counters struct {
	// Matched Pods are selected, active, have the SidecarSet in their injected
	// list and contain all its sidecars.
	Matched int32
	// Updated Pods are matched and carry the current hash.
	Updated int32
	// Ready Pods are matched and ready, and no update of them is under way.
	Ready int32
	// UpdatedReady Pods are both Updated and Ready.
	UpdatedReady int32
	// Uninjected Pods are selected and active and lack a sidecar, or do not have
	// the SidecarSet in their injected list, although admission would have
	// injected it. Native sidecars count among the sidecars.
	Uninjected int32
}

// sidecarSet is what is known of one SidecarSet: its Pods, their counters, and the rollout of its
// content.
type sidecarSet struct {
	label   string // its name
	name    podstate.Name
	program *inject.Program
	content *inplace.Content
	members []*membership

	counters  Counters
	revisions map[podstate.Name]RevisionCount
	differing int // Pods whose recorded content differs in more than images
	tasks     int // Pods that can be written, now or later

	strategy *rollout.Strategy
	// status is that of the rollout, and saved is what the API server has.
	status, saved rollout.Status
	// recorded is the last content that SetCurrent was called for, and since is the first second
	// after it became current.
	recorded contentID
	since    int64
	// labelled selects the Pods whose condition SidecarSetUpgradable may be set to false; nil for
	// none.
	labelled labels.Selector

	touched, due, removed bool
}

func newSidecarSet(name string) *sidecarSet {
	return &sidecarSet{label: name, name: podstate.MakeName(name), revisions: map[podstate.Name]RevisionCount{}, status: rollout.Begun, saved: rollout.Begun}
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
	if old == nil || contentIDOf(old) != contentIDOf(program) {
		s.status, s.saved, s.since = rollout.Begun, rollout.Begun, 0
		for _, m := range s.members {
			m.Rest, m.refusals = nil, 0
		}
	}
	labelled, strategy := s.labelled, s.strategy
	s.setStrategy()
	switch {
	case old == nil || !sameSelection(old, program):
		return selectionChanged
	case strategy.Updates() != s.strategy.Updates() || !strategy.LooksLike(s.strategy) || !reflect.DeepEqual(labelled, s.labelled) || !now.Equal(was):
		return comparisonChanged
	}
	return nothingChanged
}

func sameSelection(a, b *inject.Program) bool {
	return reflect.DeepEqual(a.Set.Spec.Selector, b.Set.Spec.Selector) &&
		reflect.DeepEqual(a.Set.Spec.NamespaceSelector, b.Set.Spec.NamespaceSelector)
}

// setStrategy sets what the update strategy of the Program says.
func (s *sidecarSet) setStrategy() {
	s.strategy = rollout.NewStrategy(s.program.Set)
	s.labelled = nil
	if !s.strategy.Updates() || s.strategy.IsPaused() {
		return
	}
	s.labelled = labels.Everything()
	if selector := s.program.Set.Spec.UpdateStrategy.Selector; selector != nil {
		s.labelled, _ = metav1.LabelSelectorAsSelector(selector) // nil if it cannot be used
	}
}

// contentID identifies a content and its ControllerRevision. Contents that differ in
// volumes alone have one hash and two ControllerRevisions.
type contentID struct{ hash, revision string }

func contentIDOf(p *inject.Program) contentID { return contentID{p.Hash, p.Revision()} }

// isRecorded reports whether a ControllerRevision records the content of the Program, under
// the name that Pods with this content will record.
func (s *sidecarSet) isRecorded() bool { return s.recorded == contentIDOf(s.program) }

// RevisionCount counts the matched Pods that record one ControllerRevision.
type RevisionCount struct{ Pods, Ready int32 }

// contribution is what one Pod adds to the numbers of a SidecarSet.
type contribution struct {
	revision podstate.Name // that it records, if it is matched
	count    inplace.Count
	differs  bool
	task     bool // it can be written, now or later
}

// add adds a contribution n times.
func (s *sidecarSet) add(c contribution, n int32) {
	of := func(is bool) int32 {
		if is {
			return n
		}
		return 0
	}
	matched, updated, ready := c.count&inplace.Matched != 0, c.count&inplace.Updated != 0, c.count&inplace.Ready != 0
	s.counters.Matched += of(matched)
	s.counters.Updated += of(updated)
	s.counters.Ready += of(ready)
	s.counters.UpdatedReady += of(updated && ready)
	s.counters.Uninjected += of(c.count&inplace.Lacking != 0)
	s.differing += int(of(c.differs))
	s.tasks += int(of(c.task))
	if c.revision == 0 {
		return
	}
	r := s.revisions[c.revision]
	r.Pods, r.Ready = r.Pods+n, r.Ready+of(ready)
	if s.revisions[c.revision] = r; r.Pods == 0 {
		delete(s.revisions, c.revision)
	}
}

// State is what is known of one SidecarSet's Pods.
type State struct {
	// Known is false if the current snapshot does not have the SidecarSet. The other
	// fields are then zero.
	Known bool
	Counters
	// Program is what the Pods were counted with.
	Program *inject.Program
	// Uninjected are the Pods that Counters.Uninjected counts, by why they are not injected.
	Uninjected []appsv1beta1.SidecarSetPodGroup
	// Revisions counts matched Pods by the name of the ControllerRevision that they
	// record. Pods that record none are not in it.
	Revisions map[podstate.Name]RevisionCount
	// Content has no Differences if SetDifferences has not been called for it.
	Content *inplace.Content
	// Differs: a Pod records a content that differs in more than images.
	Differs bool
}

// State returns what is known of a SidecarSet's Pods.
func (t *Tally) State(sidecarSet string) State {
	s, ok := t.sets[sidecarSet]
	if !ok {
		return State{}
	}
	state := State{
		Known: true, Counters: s.counters, Program: s.program, Uninjected: s.uninjected(),
		Revisions: make(map[podstate.Name]RevisionCount, len(s.revisions)), Content: s.content, Differs: s.differing > 0,
	}
	for name, count := range s.revisions {
		state.Revisions[name] = count
	}
	return state
}

func (s *sidecarSet) uninjected() []appsv1beta1.SidecarSetPodGroup {
	if s.counters.Uninjected == 0 {
		return nil
	}
	var groups rollout.Groups
	for _, m := range s.members {
		if m.part.count&inplace.Lacking != 0 {
			groups.Add(inplace.Reason(s.content.WhyLacking(m.Record)), "", m.Record)
		}
	}
	return groups.List()
}

// Current is the stored state of the current content of a SidecarSet.
type Current struct {
	// Program has that content.
	Program *inject.Program
	// Revision is the name of the ControllerRevision that records it.
	Revision string
	// Since is the time at which it became current.
	Since time.Time
	// Status is that of its rollout, as the API server has it.
	Status rollout.Status
}

// SetCurrent sets the stored state of the current content of a SidecarSet, and returns the plan of its
// rollout. No Pod is updated before this call, because a ControllerRevision must record the content
// that Pods get. It returns false, and does nothing, if the content has changed meanwhile, or if the
// Program expects a ControllerRevision of another name: the Program that is compiled from the next
// status expects the right name.
func (t *Tally) SetCurrent(sidecarSet string, c Current) (plan rollout.Plan, ok bool) {
	s, ok := t.sets[sidecarSet]
	recorded := contentID{c.Program.Hash, c.Revision}
	if !ok || contentIDOf(s.program) != recorded || s.program.Set.UID != c.Program.Set.UID {
		return rollout.Plan{}, false
	}
	if s.recorded != recorded || s.since == 0 {
		s.recorded, s.status = recorded, c.Status.Losing(s.status, t.now)
	}
	if s.saved != c.Status || s.since == 0 {
		s.saved = c.Status
		t.markDue(s)
	}
	s.since = c.Since.Unix() + 1
	return t.outlook(s), true
}

// outlook returns a plan that is not carried out, so that it begins nothing. It shares nothing that
// changes with the Tally.
func (t *Tally) outlook(s *sidecarSet) rollout.Plan {
	plan := t.plan(s)
	plan.Status.NotReadyBefore = s.status.NotReadyBefore
	plan.Write, plan.Reset = nil, nil
	if plan.Who != nil {
		plan.Who = new(*plan.Who)
	}
	return plan
}

// SetDifferences sets how recorded contents differ from the one with this hash without images. It
// does nothing if that is not the current content.
func (t *Tally) SetDifferences(sidecarSet, hashWithoutImage string, d inplace.Differences) {
	s, ok := t.sets[sidecarSet]
	if !ok || s.program.HashWithoutImage != hashWithoutImage {
		return
	}
	s.content = s.content.With(d)
	for _, m := range s.members {
		t.recountOne(m)
	}
}

// plan decides about the Pods of a SidecarSet.
func (t *Tally) plan(s *sidecarSet) rollout.Plan {
	pods := t.buffer[:0]
	for _, m := range s.members {
		if m.part.count&inplace.Matched != 0 {
			t.deliver(m)
			m.Dead = t.isDead(m.Record)
			pods = append(pods, &m.Pod)
		}
	}
	t.buffer = pods
	status := s.status
	stored := t.now >= status.DisappearedUntil || status.Disappeared == s.saved.Disappeared && status.DisappearedUntil == s.saved.DisappearedUntil
	return rollout.Decide(s.strategy, status, stored, pods, t.now)
}
