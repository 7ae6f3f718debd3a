package tracker

import (
	"math"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// sidecarSet is what is known of one SidecarSet: its Pods, and the rollout of its revision.
type sidecarSet struct {
	label    string // its name
	name     podstate.Name
	compiled *inject.Compiled
	revision *inplace.Revision
	members  []*membership

	strategy *rollout.Strategy
	// status is that of the rollout, and saved is what the API server has.
	status, saved rollout.Status
	// available is how many updated Pods were available in the last plan.
	available int
	// newPods is the ControllerRevision that new Pods get; 0: the current one.
	newPods podstate.Name
	// recorded is the revision that a Pass last had as the current one, and since is the first
	// second after it became current; 0: the present revision was not current in a Pass yet.
	recorded revisionID
	since    int64
	// inFlight is how many writes are under way.
	inFlight int
	// upgradable selects the Pods whose condition SidecarSetUpgradable may be set to false; nil for
	// none.
	upgradable labels.Selector

	dirty, edited, removed bool
}

func newSidecarSet(name string) *sidecarSet {
	return &sidecarSet{label: name, name: podstate.MakeName(name), status: rollout.Begun, saved: rollout.Begun}
}

// change is how many Pods a new compiled SidecarSet may affect.
type change int

const (
	nothingChanged    change = iota
	comparisonChanged        // the same Pods are selected, but they may count differently
	selectionChanged         // other Pods may be selected
)

// set sets a new compiled SidecarSet, and returns what changed for the Pods.
func (s *sidecarSet) set(compiled *inject.Compiled) change {
	old, was, now := s.compiled, s.revision, inplace.RevisionOf(compiled)
	if old != nil && old.HashWithoutImage == compiled.HashWithoutImage {
		now = now.With(was.Differences())
	}
	s.compiled, s.revision = compiled, now
	if old == nil || revisionIDOf(old) != revisionIDOf(compiled) {
		s.status, s.saved, s.since, s.available = rollout.Begun, rollout.Begun, 0, 0
		for _, m := range s.members {
			m.Backoff, m.refusals, m.labelled, m.Undone = nil, 0, false, podstate.Undone{}
		}
	}
	upgradable, strategy := s.upgradable, s.strategy
	s.setStrategy()
	switch {
	case old == nil || !sameSelection(old, compiled):
		return selectionChanged
	case strategy.Updates() != s.strategy.Updates() || !strategy.LooksLike(s.strategy) || !reflect.DeepEqual(upgradable, s.upgradable) || !now.Equal(was):
		return comparisonChanged
	}
	return nothingChanged
}

// setNewPods sets the ControllerRevision that new Pods get.
func (s *sidecarSet) setNewPods(name podstate.Name) {
	if s.newPods == name {
		return
	}
	s.newPods = name
	for _, m := range s.members {
		m.setNew()
	}
}

func sameSelection(a, b *inject.Compiled) bool {
	return reflect.DeepEqual(a.Set.Spec.Selector, b.Set.Spec.Selector) &&
		reflect.DeepEqual(a.Set.Spec.NamespaceSelector, b.Set.Spec.NamespaceSelector)
}

// setStrategy sets what the update strategy of the compiled SidecarSet says.
func (s *sidecarSet) setStrategy() {
	s.strategy = rollout.NewStrategy(s.compiled.Set)
	s.upgradable = nil
	if !s.strategy.Updates() || s.strategy.IsPaused() {
		return
	}
	s.upgradable = labels.Everything()
	if selector := s.compiled.Set.Spec.UpdateStrategy.Selector; selector != nil {
		s.upgradable, _ = metav1.LabelSelectorAsSelector(selector) // nil if it cannot be used
	}
}

// revisionID identifies a revision and its ControllerRevision. Revisions that differ in
// volumes alone have one hash and two ControllerRevisions.
type revisionID struct{ hash, revision string }

func revisionIDOf(p *inject.Compiled) revisionID { return revisionID{p.Hash, p.Revision()} }

// SetDifferences sets how recorded revisions differ from the one with this hash without images. It
// does nothing if that is not the current revision.
func (t *Tracker) SetDifferences(sidecarSet, hashWithoutImage string, d inplace.Differences) {
	s, ok := t.sets[sidecarSet]
	if !ok || s.compiled.HashWithoutImage != hashWithoutImage {
		return
	}
	s.revision = s.revision.With(d)
	for _, m := range s.members {
		t.judgeOne(m)
	}
}

// counts is how a Pod counts once all writes of it are carried out.
type counts struct {
	is       inplace.Count
	ready    bool          // its summary says so
	differs  bool          // it records a revision that differs in more than images
	revision podstate.Name // that it records
}

func (s *sidecarSet) countsOf(r *podstate.Summary) counts {
	c := counts{is: s.revision.Count(r, math.MaxInt64), ready: r.Ready}
	if c.is&inplace.Matched != 0 {
		in, _ := r.Injection(s.name)
		c.revision, c.differs = in.Revision, s.revision.Differs(r)
	}
	return c
}

// isMislabelled reports whether the condition SidecarSetUpgradable of a Pod is to be written, once
// for a revision. A Pod that is current needs none until it has been updated in place.
func (s *sidecarSet) isMislabelled(m *membership) bool {
	if s.upgradable == nil || m.counts.is&inplace.Matched == 0 || m.labelled {
		return false
	}
	in, _ := m.Summary.Injection(s.name)
	switch m.Verdict.Method {
	case inplace.Current:
		return in.Upgradable == podstate.NotUpgradable || in.Upgradable == podstate.Unsaid && m.Summary.Ready && m.Written.Carried != 0
	case inplace.Recreate:
		return in.Upgradable != podstate.NotUpgradable && s.upgradable.Matches(m.Summary.Labels.Labels())
	}
	return false
}
