package inject

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// fit returns a *FitError if API servers would refuse the Pod because of what the plan gives
// it. It speaks of rules that all supported API servers have, and leaves the rest to them. A
// fault that the Pod has without its sidecars is left to them as well. It checks nothing of a
// SidecarSet that the Pod already carries.
func (c *computation) fit() error {
	for i := range c.targets {
		t := &c.targets[i]
		if t.skip != "" {
			continue
		}
		for _, list := range [][]sidecar{t.initContainers, t.containers} {
			for j := range list {
				if list[j].demands == nil {
					continue
				}
				if err := c.fitSidecar(t, &list[j]); err != nil {
					return err
				}
			}
		}
	}
	if err := c.fitPorts(); err != nil {
		return err
	}
	if err := c.fitHostProcess(); err != nil {
		return err
	}
	if err := c.fitReplacedVolumes(); err != nil {
		return err
	}
	return c.fitPodResources()
}

// misfit says that a member of a sidecar does not fit the Pod. member begins with a dot.
func (s *sidecar) misfit(t *target, member, problem, remedy string) error {
	return &FitError{SidecarSet: t.Name(), Container: s.name, Field: s.field + member, Problem: problem, Remedy: remedy}
}

// fitSidecar checks what does not depend on other sidecars.
func (c *computation) fitSidecar(t *target, s *sidecar) error {
	d, spec := s.demands, &c.pod.Spec
	if spec.OS != "" {
		if refused := d.refusedBy[corev1.OSName(spec.OS)]; len(refused) > 0 {
			return s.misfit(t, ".securityContext."+refused[0], fmt.Sprintf("a Pod with spec.os.name %s cannot have a container with %s", spec.OS, strings.Join(refused, ", ")),
				"remove them from the sidecar")
		}
	}
	if d.restarts != "" && spec.RestartPolicy == string(corev1.RestartPolicyNever) {
		return s.misfit(t, d.restarts, "RestartContainer is not possible in a Pod with restartPolicy Never", "use NotRequired")
	}
	if d.unmasked && !spec.NoHostUsers {
		return s.misfit(t, ".securityContext.procMount", "Unmasked is possible only in a Pod with hostUsers false", "set hostUsers of the Pod to false")
	}
	if d.device != "" && spec.NoHostUsers {
		return s.misfit(t, d.device, "a block device is not possible in a Pod with hostUsers false", "mount the volume as a file system")
	}
	for i, claim := range d.claims {
		if !slices.Contains(spec.ResourceClaims, claim) {
			return s.misfit(t, fmt.Sprintf(".resources.claims[%d].name", i), fmt.Sprintf("the Pod has no element %q of spec.resourceClaims", claim), "add it to the Pod")
		}
	}
	if grace := spec.gracePeriod(); d.sleep > 0 && d.sleep > grace {
		return s.misfit(t, d.sleepField, fmt.Sprintf("%d seconds are longer than the terminationGracePeriodSeconds of the Pod, %d", d.sleep, grace),
			"raise terminationGracePeriodSeconds of the Pod, or shorten the sleep")
	}
	for i := range d.volumes {
		if err := c.fitVolume(t, s, &d.volumes[i]); err != nil {
			return err
		}
	}
	return c.fitProfiles(t, s)
}

// fitProfiles compares the profiles of a sidecar with the annotations of the Pod that were
// used before there were members for them: if both are present, they have to be equal.
func (c *computation) fitProfiles(t *target, s *sidecar) error {
	for i := range s.demands.profiles {
		p := &s.demands.profiles[i]
		if value, present := c.annotation(p.annotation); present && !slices.Contains(p.values, value) {
			return s.misfit(t, p.member, fmt.Sprintf("annotation %q of the Pod asks for another profile than %s", p.annotation, p.values[0]),
				"remove the annotation, or use the same profile in both")
		}
	}
	return nil
}

// fitAnnotations checks the annotations, once all of them are known.
func (c *computation) fitAnnotations() error {
	if len(c.plan.Annotations) == 0 {
		return nil
	}
	had, has := 0, 0
	for key, value := range c.pod.Annotations {
		had += len(key) + len(value)
		if _, planned := c.plan.Annotations[key]; !planned {
			has += len(key) + len(value)
		}
	}
	for key, value := range c.plan.Annotations {
		has += len(key) + len(value)
	}
	var writes *target // writes most likely what is too much
	for i := range c.targets {
		t := &c.targets[i]
		if t.skip != "" {
			continue
		}
		if writes == nil || len(writes.metadata) == 0 && len(t.metadata) > 0 {
			writes = t
		}
		for _, profile := range t.profiles {
			if _, planned := c.plan.Annotations[profile.annotation]; planned && !c.hasContainer(profile.container) {
				return &FitError{SidecarSet: t.Name(), Field: "spec.patchPodMetadata",
					Problem: fmt.Sprintf("annotation %q is about container %q, which the Pod does not have", profile.annotation, profile.container),
					Remedy:  "use securityContext.appArmorProfile of a sidecar, or correct the name"}
			}
		}
	}
	if writes == nil || has <= maxAnnotations || had > maxAnnotations {
		return nil
	}
	field, remedy := "spec", "shorten the annotations of the Pod"
	if len(writes.metadata) > 0 {
		field, remedy = "spec.patchPodMetadata", remedy+" or of the SidecarSet"
	}
	return &FitError{SidecarSet: writes.Name(), Field: field, Remedy: remedy,
		Problem: fmt.Sprintf("with the annotations of its SidecarSets the Pod has %d bytes of annotations, and API servers accept %d", has, maxAnnotations)}
}

// hasContainer reports whether the Pod has a container of that name after injection.
func (c *computation) hasContainer(name string) bool {
	t, _ := c.sidecarNamed(name)
	return t != nil || indexOf(c.pod.InitContainers, name) >= 0 || indexOf(c.pod.Containers, name) >= 0
}

// sidecarNamed returns a sidecar that the Pod has after injection and its SidecarSet, nil if
// no SidecarSet brings that name.
func (c *computation) sidecarNamed(name string) (*target, *sidecar) {
	for i := range c.targets {
		t := &c.targets[i]
		if !t.takesPart() {
			continue
		}
		for _, list := range [][]sidecar{t.initContainers, t.containers} {
			for j := range list {
				if list[j].name == name {
					return t, &list[j]
				}
			}
		}
	}
	return nil, nil
}

// isInjectedNow reports whether this plan decides about the container of that name.
func (c *computation) isInjectedNow(name string) bool {
	t, _ := c.sidecarNamed(name)
	return t != nil && t.skip == ""
}

// cut bounds a name that the Pod's author has chosen.
func cut(name string) string { return name[:min(len(name), maxContainerName)] }

// ownerOf says in a message whose a container is. t is nil for one of the Pod's own.
func ownerOf(container string, t *target) string {
	if t == nil {
		return fmt.Sprintf("container %q of the Pod", cut(container))
	}
	return fmt.Sprintf("container %q of SidecarSet %q", container, t.Name())
}
