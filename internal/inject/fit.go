package inject

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// fit returns a *FitError if API servers would refuse the Pod because of what the plan gives
// it. It speaks of rules that all supported API servers have, and leaves the rest to them: those
// about members that an older API server, or one without a feature gate, drops from Pods. A
// fault that the Pod has without its sidecars is left to them as well. It checks nothing of a
// SidecarSet that the Pod already has.
func fit(s *selected, p *placement, edits *edits) error {
	if !p.injects {
		return nil
	}
	c := fitter{s, p, edits}
	for s := range sidecarsOf(c.injecting()) {
		if err := c.hasEnded(); err != nil {
			return err
		}
		if refused := s.refusedBy[corev1.OSName(c.pod.Spec.OS)]; len(refused) > 0 {
			return s.misfit(".securityContext."+refused[0], fmt.Sprintf("a Pod with spec.os.name %s cannot have a container with %s", c.pod.Spec.OS, strings.Join(refused, ", ")),
				"remove them from the sidecar")
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

// fitter checks a Pod together with what the plan gives it. It changes nothing.
type fitter struct {
	*selected
	placement *placement
	edits     *edits
}

// linuxOnly are the members of securityContext that a Pod of Windows cannot have, and that no
// supported API server drops.
var linuxOnly = []string{
	"allowPrivilegeEscalation", "appArmorProfile", "capabilities", "privileged", "readOnlyRootFilesystem",
	"runAsGroup", "runAsUser", "seLinuxOptions", "seccompProfile",
}

// refusedBy returns the members of a sidecar's securityContext that a Pod cannot have, by its
// operating system; nil if the sidecar has no securityContext.
func refusedBy(container map[string]any) map[corev1.OSName][]string {
	members, _ := container["securityContext"].(map[string]any)
	if members == nil {
		return nil
	}
	isAbsent := func(member string) bool { return members[member] == nil }
	return map[corev1.OSName][]string{
		corev1.Windows: slices.DeleteFunc(slices.Clone(linuxOnly), isAbsent),
		corev1.Linux:   slices.DeleteFunc([]string{"windowsOptions"}, isAbsent),
	}
}
