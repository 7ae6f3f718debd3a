package inplace

import (
	"reflect"
	"slices"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/podstate"
)

// Revision is what running Pods are compared with: the current revision of one SidecarSet. It is
// immutable.
type Revision struct {
	terms
	differences Differences
}

// Differences has the difference between each recorded revision and the current one, by the hash
// without images. A revision that is missing is no longer recorded in a ControllerRevision.
type Differences map[podstate.Name]Difference

// terms are the parts of a compiled SidecarSet that a record is compared with.
type terms struct {
	name             podstate.Name // of the SidecarSet
	base             podstate.Name // of a canary; the zero Name otherwise
	hash             podstate.Name
	hashWithoutImage podstate.Name
	created          int64     // in seconds
	sidecars         []sidecar // spec.containers, and the native ones of spec.initContainers
	plain            []sidecar // the other init containers: they have ended once the Pod runs
	// recognisable is false for a SidecarSet without containers: a Pod does not show
	// whether it was injected.
	recognisable bool
}

// sidecar is one of spec.containers or spec.initContainers.
type sidecar struct {
	label      string // its name
	name       podstate.Name
	containers []podstate.Name // two for a hot-upgrade sidecar
	image      podstate.Name   // that they are to get; a hot-upgrade sidecar's working one
	emptyImage podstate.Name   // that its idle container must have; zero: any
}

// RevisionOf returns the revision of a compiled SidecarSet, which is not compared with others yet.
func RevisionOf(compiled *inject.Compiled) *Revision {
	set := compiled.Set
	t := terms{
		name:             podstate.MakeName(compiled.Name()),
		base:             podstate.MakeName(appsv1beta1.BaseOfCanary(set.Annotations)),
		hash:             podstate.MakeName(compiled.Hash),
		hashWithoutImage: podstate.MakeName(compiled.HashWithoutImage),
		created:          set.CreationTimestamp.Unix(),
		recognisable:     len(set.Spec.Containers)+len(set.Spec.InitContainers) > 0,
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
	return &Revision{terms: t}
}

func sidecarOf(c *appsv1beta1.SidecarContainer, names []string) sidecar {
	s := sidecar{label: c.Name, name: podstate.MakeName(c.Name), image: podstate.MakeName(c.Image)}
	for _, name := range names {
		s.containers = append(s.containers, podstate.MakeName(name))
	}
	if c.IsHotUpgrade() {
		s.emptyImage = podstate.MakeName(c.UpgradeStrategy.HotUpgradeEmptyImage)
	}
	return s
}

// With returns a copy that knows the Differences from the recorded revisions.
func (c *Revision) With(d Differences) *Revision { return &Revision{c.terms, d} }

// Differences returns the differences from the recorded revisions, nil if they are not known yet.
func (c *Revision) Differences() Differences { return c.differences }

// Name is the name of the SidecarSet.
func (c *Revision) Name() podstate.Name { return c.name }

// Base is the name of the SidecarSet that a canary replaces; zero for other SidecarSets.
func (c *Revision) Base() podstate.Name { return c.base }

// Equal reports whether all Pods count the same for two revisions. It does not compare the
// Differences.
func (c *Revision) Equal(other *Revision) bool { return reflect.DeepEqual(c.terms, other.terms) }

// Count is how a Pod that the SidecarSet selects counts. It is a set of bits.
type Count uint8

// The bits.
const (
	// Matched Pods have the SidecarSet.
	Matched Count = 1 << iota
	// Updated Pods have the current revision.
	Updated
	// Ready Pods are available, and their sidecars run the images in the spec.
	Ready
	// Uninjected Pods do not have the SidecarSet, or lack a sidecar.
	Uninjected
)

// Count returns how a selected, active Pod counts at a time, in seconds since 1970. A Pod that
// lacks a sidecar is Uninjected, unless it records an earlier revision of this SidecarSet, which may
// not have had the sidecar: it is then Matched, and only a new Pod can get the sidecar. A Pod that
// is older than the SidecarSet records a revision of another one, which had this name. A Pod of the
// same second was most likely applied together with the SidecarSet.
func (c *Revision) Count(r *podstate.Summary, now int64) Count {
	in, injected := r.Injection(c.name)
	switch {
	case !c.recognisable && !injected:
		return 0
	case !injected:
		return Uninjected
	}
	count := Matched
	switch contained := c.containedIn(r); {
	case !contained && (in.HashWithoutImage == 0 || in.HashWithoutImage == c.hashWithoutImage || r.Order.Created < c.created):
		return Uninjected
	case contained && in.Hash == c.hash && in.ResizeTo == 0:
		count |= Updated
	}
	if written := r.Written(c.name); r.Ready && r.Reported && (written.At == 0 || written.IsCarriedOut(now)) && !c.isUpgrading(r) {
		count |= Ready
	}
	return count
}

// WhyUninjected returns the reason for which a Pod is Uninjected. The creation time and the
// annotations of the Pod decide. A Pod that was created in the same second as the SidecarSet
// counts as older, because it may have been admitted before the SidecarSet was Ready.
func (c *Revision) WhyUninjected(r *podstate.Summary) string {
	_, listed := r.Injection(c.name)
	switch {
	case r.Order.Created <= c.created:
		return appsv1beta1.ReasonOlderThanSidecarSet
	case listed:
		return appsv1beta1.ReasonSidecarsMissing
	case slices.Contains(r.Removed, c.name):
		return appsv1beta1.ReasonRecordRemoved
	}
	return appsv1beta1.ReasonMissedAtCreation
}

// Differs reports whether a Pod records a revision that differs in more than images, or is being
// resized to one. Only for such Pods the Differences are needed.
func (c *Revision) Differs(r *podstate.Summary) bool {
	in, _ := r.Injection(c.name)
	return c.differs(in)
}

func (c *Revision) differs(in podstate.Injection) bool {
	differs := func(recorded podstate.Name) bool { return recorded != 0 && recorded != c.hashWithoutImage }
	return differs(in.HashWithoutImage) || differs(in.ResizeTo) || differs(in.ResizeBefore)
}

// Written returns what a Pod says about the operator's last write of it for the SidecarSet. A hot
// upgrade is carried out once the old container idles.
func (c *Revision) Written(r *podstate.Summary) podstate.Written {
	w := r.Written(c.name)
	if c.isUpgrading(r) {
		w.Carried = 0
	}
	return w
}

// Undone returns the operator's last write of the Pod if it was of the current revision, and the Pod does
// not record that any more; else it returns zero.
func (c *Revision) Undone(r *podstate.Summary) podstate.Undone { return r.Undone(c.name, c.hash) }

// isUpgrading reports whether a hot upgrade of a sidecar is under way.
func (c *Revision) isUpgrading(r *podstate.Summary) bool {
	return slices.ContainsFunc(c.sidecars, func(s sidecar) bool { return s.upgradingIn(r) })
}

// Resets reports whether a hot upgrade can be ended: its new container runs.
func (c *Revision) Resets(r *podstate.Summary) bool {
	return slices.ContainsFunc(c.sidecars, func(s sidecar) bool {
		if !s.upgradingIn(r) || !r.HotUpgraded(s.name) {
			return false
		}
		working, _ := r.Working(s.name)
		container, _ := r.Container(working)
		return container.Ready && !container.Old
	})
}

// Trouble returns why a sidecar of a Pod does not run, and its name in the SidecarSet: those of the
// first that has failed, or else of the first that is being created.
func (c *Revision) Trouble(r *podstate.Summary) (why podstate.Trouble, name string) {
	for _, sidecars := range [...][]sidecar{c.sidecars, c.plain} {
		for i := range sidecars {
			for _, in := range sidecars[i].containers {
				container, ok := r.Container(in)
				if ok && container.Trouble != 0 && (why == 0 || container.Trouble.IsFailure() && !why.IsFailure()) {
					why, name = container.Trouble, sidecars[i].label
				}
			}
		}
	}
	return why, name
}

// containedIn reports whether the Pod has a container for each sidecar, and for a
// hot-upgrade sidecar both containers and the record which of them works.
func (c *Revision) containedIn(r *podstate.Summary) bool {
	for i := range c.sidecars {
		for _, name := range c.sidecars[i].containers {
			if _, ok := r.Container(name); !ok {
				return false
			}
		}
		if c.sidecars[i].hot() {
			if _, ok := r.Working(c.sidecars[i].name); !ok {
				return false
			}
		}
	}
	return true
}

// changesIn returns the kinds of the containers that have another image than they are to get.
func (c *Revision) changesIn(r *podstate.Summary) (changed podstate.Kinds) {
	for _, sidecars := range [...][]sidecar{c.sidecars, c.plain} {
		for i := range sidecars {
			s := &sidecars[i]
			working, _ := r.Working(s.name)
			for _, name := range s.containers {
				idle := s.hot() && name != working
				if container, ok := r.Container(name); ok && !idle && container.Image != s.image {
					changed = changed.With(container.Kind)
				}
			}
		}
	}
	return changed
}

func (s *sidecar) hot() bool { return len(s.containers) == 2 }

// upgradingIn reports whether the idle container of a hot-upgrade sidecar has anything but the
// empty image. If the annotations say that no upgrade is under way, another image is the empty
// one in the form to which a webhook has rewritten it.
func (s *sidecar) upgradingIn(r *podstate.Summary) bool {
	if !s.hot() || s.emptyImage == 0 || r.Idles(s.name) {
		return false
	}
	idle := s.containers[0]
	if working, _ := r.Working(s.name); working == idle {
		idle = s.containers[1]
	}
	c, _ := r.Container(idle)
	return c.Image != s.emptyImage
}
