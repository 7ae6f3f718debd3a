package tally

import (
	"reflect"
	"slices"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// verdict is how one Pod counts for one SidecarSet that selects it.
type verdict uint8

const (
	matched verdict = 1 << iota
	updated
	ready
	uninjected
)

func (c *Counters) add(v verdict, n int32) {
	if v&matched != 0 {
		c.Matched += n
	}
	if v&updated != 0 {
		c.Updated += n
	}
	if v&ready != 0 {
		c.Ready += n
	}
	if v&(updated|ready) == updated|ready {
		c.UpdatedReady += n
	}
	if v&uninjected != 0 {
		c.Uninjected += n
	}
}

// change is how many Pods a new Program may affect.
type change int

const (
	nothingChanged    change = iota
	comparisonChanged        // the same Pods are selected, but they may count differently
	selectionChanged         // other Pods may be selected
)

// sidecarSet has the terms that Pods are compared with, and the counters.
type sidecarSet struct {
	label   string // its name
	name    podstate.Name
	program *inject.Program
	terms

	// revisions counts the matched Pods by the ControllerRevision they record.
	revisions map[podstate.Name]RevisionCount
	groups    [concerns]group // by concern

	counters Counters
	// alterations counts changes that are not in the counters.
	alterations uint64
	reported    reported
	touched     bool
	removed     bool

	rollouts
}

func newSidecarSet(name string) *sidecarSet {
	return &sidecarSet{
		label: name, name: podstate.MakeName(name), revisions: map[podstate.Name]RevisionCount{},
		rollouts: rollouts{
			resets: chores{}, labels: chores{}, down: map[*pod]bool{}, recreation: recreation{stuck: map[*pod]inplace.Reason{}},
		},
	}
}

// reported is the state at the last report by Changed.
type reported struct {
	Count
	alterations uint64
}

// terms are the parts of a Program that a record is compared with.
type terms struct {
	hash             podstate.Name
	hashWithoutImage podstate.Name
	base             podstate.Name // of a canary; the zero Name otherwise
	created          int64         // in seconds
	sidecars         []sidecar     // spec.containers, and the native ones of spec.initContainers
	plain            []sidecar     // the other init containers: they have ended once the Pod runs
	// recognisable is false for a SidecarSet without containers: a Pod does not show
	// whether it was injected.
	recognisable bool
}

// sidecar is one of spec.containers or spec.initContainers.
type sidecar struct {
	name       podstate.Name
	containers []podstate.Name // two for a hot-upgrade sidecar
	image      podstate.Name   // that they are to get; a hot-upgrade sidecar's working one
	emptyImage podstate.Name   // that its idle container must have; zero: any
}

// set sets a new Program, and returns what changed for the Pods.
func (s *sidecarSet) set(program *inject.Program) change {
	old, now := s.program, termsOf(program)
	unchanged := reflect.DeepEqual(s.terms, now)
	s.program, s.terms = program, now
	switch {
	case old == nil || !sameSelection(old, program):
		return selectionChanged
	case !unchanged:
		return comparisonChanged
	}
	return nothingChanged
}

func sameSelection(a, b *inject.Program) bool {
	return reflect.DeepEqual(a.Set.Spec.Selector, b.Set.Spec.Selector) &&
		reflect.DeepEqual(a.Set.Spec.NamespaceSelector, b.Set.Spec.NamespaceSelector)
}

func termsOf(program *inject.Program) terms {
	set := program.Set
	t := terms{
		hash:             podstate.MakeName(program.Hash),
		hashWithoutImage: podstate.MakeName(program.HashWithoutImage),
		created:          set.CreationTimestamp.Unix(),
		recognisable:     len(set.Spec.Containers)+len(set.Spec.InitContainers) > 0,
	}
	if base := appsv1beta1.BaseOfCanary(set.Annotations); base != "" {
		t.base = podstate.MakeName(base)
	}
	for i := range set.Spec.Containers {
		c := &set.Spec.Containers[i]
		t.sidecars = append(t.sidecars, sidecarOf(c, c.PodContainerNames()))
	}
	for i := range set.Spec.InitContainers {
		c := &set.Spec.InitContainers[i]
		if s := sidecarOf(c, c.PodInitContainerNames()); c.IsNative() {
			t.sidecars = append(t.sidecars, s)
		} else {
			t.plain = append(t.plain, s)
		}
	}
	return t
}

func sidecarOf(c *appsv1beta1.SidecarContainer, names []string) sidecar {
	s := sidecar{name: podstate.MakeName(c.Name), image: podstate.MakeName(c.Image)}
	for _, name := range names {
		s.containers = append(s.containers, podstate.MakeName(name))
	}
	if image := c.UpgradeStrategy.HotUpgradeEmptyImage; c.IsHotUpgrade() && image != "" {
		s.emptyImage = podstate.MakeName(image)
	}
	return s
}

// verdictOn returns how a Pod that the SidecarSet selects counts. If the Pod lacks a
// sidecar, its list is ignored: the SidecarSet may have been deleted and created again
// with other sidecars.
func (s *sidecarSet) verdictOn(r *podstate.Record) verdict {
	injection, injected := r.Injection(s.name)
	switch {
	case !s.recognisable && !injected:
		return 0
	case !injected || !s.containedIn(r):
		return uninjected
	}
	v := matched
	if injection.Hash == s.hash && injection.Resize == inplace.NoResize {
		v |= updated
	}
	if r.Ready && s.settledIn(r) {
		v |= ready
	}
	return v
}

// containedIn reports whether the Pod has a container for each sidecar, and for a
// hot-upgrade sidecar both containers and the record which of them works.
func (s *sidecarSet) containedIn(r *podstate.Record) bool {
	for i := range s.sidecars {
		for _, name := range s.sidecars[i].containers {
			if _, ok := r.Container(name); !ok {
				return false
			}
		}
		if s.sidecars[i].hot() {
			if _, ok := r.Working(s.sidecars[i].name); !ok {
				return false
			}
		}
	}
	return true
}

// settledIn reports whether every sidecar runs the image in the spec, and no hot
// upgrade is under way.
func (s *sidecarSet) settledIn(r *podstate.Record) bool {
	if !r.Reported {
		return false
	}
	for i := range s.sidecars {
		for _, name := range s.sidecars[i].containers {
			if !r.Landed(s.name, name) {
				return false
			}
		}
		if s.sidecars[i].upgradingIn(r) {
			return false
		}
	}
	return true
}

func (s *sidecar) hot() bool { return len(s.containers) == 2 }

// upgradingIn reports whether the idle container of a hot-upgrade sidecar has
// anything but the empty image.
func (s *sidecar) upgradingIn(r *podstate.Record) bool {
	if !s.hot() || s.emptyImage == 0 {
		return false
	}
	idle := s.containers[0]
	if working, _ := r.Working(s.name); working == idle {
		idle = s.containers[1]
	}
	c, _ := r.Container(idle)
	return c.Image != s.emptyImage
}

// expected reports whether a Pod that a SidecarSet selects should carry it. It should
// not if the Pod is not eligible for injection, or carries a canary of the SidecarSet
// instead.
func (t *Tally) expected(p *pod, s *sidecarSet) bool {
	return t.excluded.Eligible(p.record.Namespace.Value(), p.record.Facts.Mirror) && !p.replaces(s, len(p.shares))
}

// replaces reports whether the Pod carries a canary of the SidecarSet, or a
// canary of that. The depth ends the search among canaries of each other.
func (p *pod) replaces(s *sidecarSet, depth int) bool {
	return depth > 0 && slices.ContainsFunc(p.shares, func(other share) bool {
		if other.set.base != s.name {
			return false
		}
		_, injected := p.record.Injection(other.set.name)
		return injected || p.replaces(other.set, depth-1)
	})
}
