package inject

import (
	"slices"
	"time"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// disbelieves reports whether the SidecarSet is injected whatever the Pod claims about it.
func (t target) disbelieves() bool { return t.enforced && t.skip == "" }

// stamp is when the Pod was given the content. An enforced SidecarSet is recorded at each
// of the calls of one admission, and keeps the time of the first, so that the calls that
// follow change nothing. Nothing else of that record is taken over.
func (c *computation) stamp(t *target) time.Time {
	if t.enforced {
		if at := c.hashes.UpdatedAt(t.Name()); at.After(c.now.Add(-recent)) && !at.After(c.now) {
			return at
		}
	}
	return c.now
}

// forgetUpdates drops what the Pod says about in-place updates of enforced
// SidecarSets. A Pod that is being created has had none.
func (c *computation) forgetUpdates() {
	state, present := c.pod.Annotations[appsv1beta1.AnnotationInPlaceUpdateState]
	if !present || !slices.ContainsFunc(c.targets, target.disbelieves) {
		return
	}
	c.annotate(appsv1beta1.AnnotationInPlaceUpdateState, podstate.ForgetUpdates(state, func(name string) bool {
		return slices.ContainsFunc(c.targets, func(t target) bool { return t.disbelieves() && t.Name() == name })
	}))
}
