package inject

import (
	"slices"
	"time"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// disbelieves reports whether the SidecarSet is injected whatever the Pod claims about it.
func (t target) disbelieves() bool { return t.enforced && t.skip == "" }

// disbelieve removes from the Pod the containers that claim to be sidecars of enforced
// SidecarSets. All steps that follow see a Pod that came without them, so neither their
// position nor their content counts. If a container has the name of such a sidecar and
// makes no such claim, it stays, and is a conflict.
func (c *computation) disbelieve() {
	var inits, containers map[string]string // SidecarSets by the names of their sidecars
	for i := range c.targets {
		if t := &c.targets[i]; t.disbelieves() {
			inits, containers = noteOwner(inits, t, t.initContainers), noteOwner(containers, t, t.containers)
		}
	}
	if len(inits)+len(containers) == 0 {
		return
	}
	pod := *c.pod // the view is the caller's
	pod.InitContainers = c.remove(InitContainers, pod.InitContainers, inits)
	pod.Containers = c.remove(Containers, pod.Containers, containers)
	c.pod = &pod
}

func noteOwner(owners map[string]string, t *target, sidecars []sidecar) map[string]string {
	for i := range sidecars {
		if owners == nil {
			owners = make(map[string]string, len(sidecars))
		}
		owners[sidecars[i].name] = t.Name()
	}
	return owners
}

// remove returns the containers that stay, and plans the removal of the others,
// the last one first.
func (c *computation) remove(list List, all []ContainerView, owners map[string]string) []ContainerView {
	claims := func(container ContainerView) bool { return container.Injected && owners[container.Name] != "" }
	for i, container := range slices.Backward(all) {
		if claims(container) {
			c.plan.Removals = append(c.plan.Removals, Edit{SidecarSet: owners[container.Name], List: list, Index: i, Name: container.Name})
		}
	}
	return slices.DeleteFunc(slices.Clone(all), claims)
}

// enforcers returns, by volume name, the enforced SidecarSet whose volume the Pod gets in
// place of its own and of those of other SidecarSets. If several enforced SidecarSets bring
// the name, it is the first one.
func (c *computation) enforcers() (owners map[string]*target) {
	for i := range c.targets {
		t := &c.targets[i]
		if !t.disbelieves() {
			continue
		}
		for j := range t.volumes {
			if owners == nil {
				owners = make(map[string]*target, len(t.volumes))
			}
			if name := t.volumes[j].name; owners[name] == nil {
				owners[name] = t
			}
		}
	}
	return owners
}

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
