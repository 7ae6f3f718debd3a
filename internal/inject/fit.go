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
func fit(s *selected, p *placement, edits *edits) error {
	if !p.injects {
		return nil
	}
	c := fitter{s, p, edits}
	for s := range sidecarsOf(c.injecting()) {
		if err := c.hasEnded(); err != nil {
			return err
		}
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
	return c.fitPodResources()
}

// misfit says that a member of a sidecar does not fit the Pod. member begins with a dot.
func (s placed) misfit(member, problem, remedy string) *FitError {
	return &FitError{SidecarSet: s.target.Name(), Container: s.name, Field: s.field + member, Problem: problem, Remedy: remedy}
}

// fitSidecar checks what does not depend on other sidecars.
func (c *fitter) fitSidecar(s placed) error {
	d, spec := s.demands, &c.pod.Spec
	if refused := d.refusedBy[corev1.OSName(spec.OS)]; len(refused) > 0 {
		return s.misfit(".securityContext."+refused[0], fmt.Sprintf("a Pod with spec.os.name %s cannot have a container with %s", spec.OS, strings.Join(refused, ", ")),
			"remove them from the sidecar")
	}
	for i, claim := range d.claims {
		if !slices.Contains(spec.ResourceClaims, claim) {
			return s.misfit(fmt.Sprintf(".resources.claims[%d].name", i), fmt.Sprintf("the Pod has no element %q of spec.resourceClaims", claim), "add it to the Pod")
		}
	}
	for i := range d.volumes {
		if err := c.fitVolume(s, &d.volumes[i]); err != nil {
			return err
		}
	}
	return nil
}

// fitVolume checks that the Pod has a volume after injection.
func (c *fitter) fitVolume(s placed, d *volumeDemand) error {
	if c.placement.brought.has(d.name) || c.volumeAt(d.name) >= 0 {
		return nil
	}
	return s.misfit(d.member, fmt.Sprintf("neither the SidecarSet nor the Pod brings volume %q", d.name), "declare it in spec.volumes of the SidecarSet")
}

// fitter checks a Pod together with what the plan gives it. It changes nothing.
type fitter struct {
	*selected
	placement *placement
	edits     *edits
}
