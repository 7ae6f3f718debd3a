package inject

import (
	"fmt"
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// demands is what a sidecar asks of its Pod, besides a free name, so that API servers take
// both together. Members are named from the container on, with a dot in front.
type demands struct {
	refusedBy   map[corev1.OSName][]string // members of securityContext that a Pod of the operating system cannot have
	hostProcess *bool
	needs       []need
	volumes     []volumeDemand
	profiles    []profileDemand
}

// need is something that the Pod's spec must have.
type need struct {
	member string
	isMet  func(*SpecView) bool // nil: another rule looks at it
	// problem and remedy are about a Pod that lacks it.
	problem func(*SpecView) string
	remedy  string
	// warning is about all Pods that lack it; "" if these are few.
	warning string
}

// Needs yields what a sidecar needs that most Pods do not have, by the member of the sidecar
// that needs it, which begins with a dot.
func Needs(c *appsv1beta1.SidecarContainer) iter.Seq2[string, string] {
	return func(yield func(member, warning string) bool) {
		for _, n := range needsOf(&c.Container) {
			if n.warning != "" && !yield(n.member, n.warning) {
				return
			}
		}
	}
}

// needsOf returns what a container needs of the Pod's spec.
func needsOf(c *corev1.Container) (needs []need) {
	always := func(problem string) func(*SpecView) string { return func(*SpecView) string { return problem } }
	for i, policy := range c.ResizePolicy {
		if policy.RestartPolicy == corev1.RestartContainer {
			needs = append(needs, need{
				member: fmt.Sprintf(".resizePolicy[%d].restartPolicy", i), remedy: "use NotRequired",
				isMet:   func(spec *SpecView) bool { return spec.RestartPolicy != string(corev1.RestartPolicyNever) },
				problem: always("RestartContainer is not possible in a Pod with restartPolicy Never"),
			})
		}
	}
	for i, claim := range c.Resources.Claims {
		needs = append(needs, need{
			member: fmt.Sprintf(".resources.claims[%d].name", i), remedy: "add it to the Pod",
			isMet:   func(spec *SpecView) bool { return slices.Contains(spec.ResourceClaims, claim.Name) },
			problem: always(fmt.Sprintf("the Pod has no element %q of spec.resourceClaims", claim.Name)),
			warning: fmt.Sprintf("a Pod without an element %s of spec.resourceClaims is refused; select only Pods that have it", claim.Name),
		})
	}
	if hooks := c.Lifecycle; hooks != nil {
		needs = append(needs, needsOfHook(".lifecycle.postStart", hooks.PostStart)...)
		needs = append(needs, needsOfHook(".lifecycle.preStop", hooks.PreStop)...)
		if hooks.StopSignal != nil {
			needs = append(needs, need{
				member: ".lifecycle.stopSignal", remedy: "set spec.os.name of the Pod, or remove the signal",
				isMet:   func(spec *SpecView) bool { return spec.OS != "" },
				problem: always("a stop signal is possible only in a Pod with spec.os.name"),
				warning: "a Pod without spec.os.name is refused; select only Pods that have it",
			})
		}
	}
	return append(needs, needsOfSecurity(c)...)
}

func needsOfHook(hook string, h *corev1.LifecycleHandler) []need {
	if h == nil || h.Sleep == nil || h.Sleep.Seconds <= 0 {
		return nil
	}
	seconds, warning := h.Sleep.Seconds, ""
	if seconds > corev1.DefaultTerminationGracePeriodSeconds {
		warning = fmt.Sprintf("a Pod with a shorter terminationGracePeriodSeconds, which is %d by default, is refused; select only Pods with a longer one, or sleep at most %[1]d seconds", corev1.DefaultTerminationGracePeriodSeconds)
	}
	return []need{{
		member: hook + ".sleep.seconds", warning: warning, remedy: "raise terminationGracePeriodSeconds of the Pod, or shorten the sleep",
		isMet: func(spec *SpecView) bool { return seconds <= spec.gracePeriod() },
		problem: func(spec *SpecView) string {
			return fmt.Sprintf("%d seconds are longer than the terminationGracePeriodSeconds of the Pod, %d", seconds, spec.gracePeriod())
		},
	}}
}

func needsOfSecurity(c *corev1.Container) (needs []need) {
	always := func(problem string) func(*SpecView) string { return func(*SpecView) string { return problem } }
	sc := c.SecurityContext
	if sc != nil && sc.ProcMount != nil && *sc.ProcMount == corev1.UnmaskedProcMount {
		needs = append(needs, need{
			member: ".securityContext.procMount", remedy: "set hostUsers of the Pod to false",
			isMet:   func(spec *SpecView) bool { return spec.NoHostUsers },
			problem: always("Unmasked is possible only in a Pod with hostUsers false"),
			warning: "a Pod without hostUsers false is refused; select only Pods that have it",
		})
	}
	if sc != nil && sc.WindowsOptions != nil && isTrue(sc.WindowsOptions.HostProcess) {
		needs = append(needs, need{ // fitHostProcess looks at it
			member:  ".securityContext.windowsOptions.hostProcess",
			warning: "a Pod without hostNetwork, or with a container that does not have it, is refused; select only Pods of HostProcess containers",
		})
	}
	if len(c.VolumeDevices) > 0 {
		needs = append(needs, need{
			member: ".volumeDevices", remedy: "mount the volume as a file system",
			isMet:   func(spec *SpecView) bool { return !spec.NoHostUsers },
			problem: always("a block device is not possible in a Pod with hostUsers false"),
		})
	}
	return needs
}

// volumeDemand is a volume that the Pod must have, and what it must be.
type volumeDemand struct {
	member, name string
	kinds        []string // nil: any
	reason       string
}

// profileDemand is an annotation that must have one of the values, if it is present.
type profileDemand struct {
	member, annotation string
	values             []string
}

var (
	blockKinds = []string{"persistentVolumeClaim", "ephemeral"}
	fileKinds  = []string{"emptyDir"}
)

// linuxOnly are the members of securityContext that a Pod of Windows cannot have.
var linuxOnly = []string{
	"allowPrivilegeEscalation", "appArmorProfile", "capabilities", "privileged", "procMount", "readOnlyRootFilesystem",
	"runAsGroup", "runAsUser", "seLinuxOptions", "seccompProfile",
}

// newDemands returns what the sidecar of that name asks for; nil if it asks for nothing.
// declared are the volumes of the SidecarSet.
func newDemands(c *appsv1beta1.SidecarContainer, raw map[string]any, name string, declared []corev1.Volume) *demands {
	d := demands{needs: needsOf(&c.Container)}
	if sc := c.SecurityContext; sc != nil {
		members, _ := raw["securityContext"].(map[string]any)
		d.addSecurity(sc, members, name)
	}
	d.addVolumes(c, declared)
	if d.refusedBy == nil && d.needs == nil && d.volumes == nil {
		return nil
	}
	return &d
}

func (d *demands) addSecurity(sc *corev1.SecurityContext, members map[string]any, name string) {
	isAbsent := func(member string) bool { return members[member] == nil }
	d.refusedBy = map[corev1.OSName][]string{
		corev1.Windows: slices.DeleteFunc(slices.Clone(linuxOnly), isAbsent),
		corev1.Linux:   slices.DeleteFunc([]string{"windowsOptions"}, isAbsent),
	}
	if sc.WindowsOptions != nil {
		d.hostProcess = sc.WindowsOptions.HostProcess
	}
	if p := sc.AppArmorProfile; p != nil {
		d.addProfile("appArmorProfile", corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+name, string(p.Type), p.LocalhostProfile)
	}
	if p := sc.SeccompProfile; p != nil {
		d.addProfile("seccompProfile", corev1.SeccompContainerAnnotationKeyPrefix+name, string(p.Type), p.LocalhostProfile)
	}
}

// addProfile adds the values of an annotation that mean a profile. AppArmor and seccomp have the
// same words, but for an older one that only seccomp has.
func (d *demands) addProfile(member, annotation, kind string, localhost *string) {
	values := []string{corev1.SeccompProfileNameUnconfined}
	switch {
	case kind == string(corev1.SeccompProfileTypeRuntimeDefault):
		values = []string{corev1.SeccompProfileRuntimeDefault, corev1.DeprecatedSeccompProfileDockerDefault}
	case kind == string(corev1.SeccompProfileTypeLocalhost) && localhost != nil:
		values = []string{corev1.SeccompLocalhostProfileNamePrefix + *localhost}
	}
	d.profiles = append(d.profiles, profileDemand{".securityContext." + member, annotation, values})
}

func (d *demands) addVolumes(c *appsv1beta1.SidecarContainer, declared []corev1.Volume) {
	for i, mount := range c.VolumeMounts {
		if !slices.ContainsFunc(declared, func(v corev1.Volume) bool { return v.Name == mount.Name }) {
			d.volumes = append(d.volumes, volumeDemand{member: fmt.Sprintf(".volumeMounts[%d].name", i), name: mount.Name})
		}
	}
	for i, device := range c.VolumeDevices {
		d.volumes = append(d.volumes, volumeDemand{fmt.Sprintf(".volumeDevices[%d].name", i), device.Name, blockKinds, "a block device"})
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FileKeyRef != nil {
			d.volumes = append(d.volumes, volumeDemand{fmt.Sprintf(".env[%d].valueFrom.fileKeyRef.volumeName", i), from.FileKeyRef.VolumeName, fileKinds, "a file with variables"})
		}
	}
}

// bytes estimates the memory that the demands take.
func (d *demands) bytes() int {
	if d == nil {
		return 0
	}
	const fixed, each = 512, 128 // with the members of securityContext; of volumes and needs
	return fixed + (len(d.volumes)+len(d.needs))*each
}
