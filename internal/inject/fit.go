package inject

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// fit returns a *FitError if API servers would refuse the Pod because of what the plan gives
// it. It speaks of rules that all supported API servers have, and leaves the rest to them. A
// fault that the Pod has without its sidecars is left to them as well. It checks nothing of a
// SidecarSet that the Pod already carries.
func (c *computation) fit() error {
	for s := range sidecarsOf(c.injecting()) {
		if s.demands == nil {
			continue
		}
		if err := c.fitSidecar(s); err != nil {
			return err
		}
	}
	if err := c.fitPorts(); err != nil {
		return err
	}
	if err := c.fitHostProcess(); err != nil {
		return err
	}
	return c.fitPodResources()
}

// misfit says that a member of a sidecar does not fit the Pod. member begins with a dot.
func (s placed) misfit(member, problem, remedy string) *FitError {
	return &FitError{SidecarSet: s.target.Name(), Container: s.name, Field: s.field + member, Problem: problem, Remedy: remedy}
}

// fitSidecar checks what does not depend on other sidecars.
func (c *computation) fitSidecar(s placed) error {
	d, spec := s.demands, &c.pod.Spec
	if refused := d.refusedBy[corev1.OSName(spec.OS)]; len(refused) > 0 {
		return s.misfit(".securityContext."+refused[0], fmt.Sprintf("a Pod with spec.os.name %s cannot have a container with %s", spec.OS, strings.Join(refused, ", ")),
			"remove them from the sidecar")
	}
	for i := range d.needs {
		if n := &d.needs[i]; n.isMet != nil && !n.isMet(spec) {
			return s.misfit(n.member, n.problem(spec), n.remedy)
		}
	}
	for i := range d.volumes {
		if err := c.fitVolume(s, &d.volumes[i]); err != nil {
			return err
		}
	}
	// Before there were members for profiles, annotations of the Pod had them. If both are
	// present, they have to be equal.
	for _, p := range d.profiles {
		if value, present := c.annotation(p.annotation); present && !slices.Contains(p.values, value) {
			return s.misfit(p.member, fmt.Sprintf("annotation %q of the Pod asks for another profile than %s", p.annotation, p.values[0]),
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
	var writes *target // writes most likely what is too much
	for t := range c.injecting() {
		if writes == nil || len(writes.metadata) == 0 && len(t.metadata) > 0 {
			writes = t
		}
		for _, rule := range t.metadata {
			for _, key := range rule.keys {
				container, isProfile := strings.CutPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix)
				if _, planned := c.plan.Annotations[key]; isProfile && planned && !c.hasContainer(container) {
					return &FitError{SidecarSet: t.Name(), Field: "spec.patchPodMetadata",
						Problem: fmt.Sprintf("annotation %q is about container %q, which the Pod does not have", key, container),
						Remedy:  "use securityContext.appArmorProfile of a sidecar, or correct the name"}
				}
			}
		}
	}
	had := 0
	for key, value := range c.pod.Annotations {
		had += len(key) + len(value)
	}
	has := had
	for key, value := range c.plan.Annotations {
		has += len(key) + len(value)
		if replaced, present := c.pod.Annotations[key]; present {
			has -= len(key) + len(replaced)
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

// gracePeriod is terminationGracePeriodSeconds of the Pod as API servers use it.
func (v *SpecView) gracePeriod() int64 {
	seconds, err := strconv.ParseInt(string(v.GracePeriod), 10, 64)
	switch {
	case err != nil:
		return corev1.DefaultTerminationGracePeriodSeconds
	case seconds < 0:
		return 1
	}
	return seconds
}
