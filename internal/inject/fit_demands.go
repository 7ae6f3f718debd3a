package inject

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// demands is what a sidecar asks of its Pod, besides a free name, so that API servers take
// both together. Members are named from the container on, with a dot in front.
type demands struct {
	refusedBy   map[corev1.OSName][]string // members of securityContext that a Pod of the operating system cannot have
	hostProcess *bool
	restarts    string // the member with RestartContainer, "" if there is none
	unmasked    bool
	device      bool     // a block device
	claims      []string // of spec.resourceClaims
	sleep       int64    // seconds of the longest sleep of a hook
	sleepField  string
	volumes     []volumeDemand
	profiles    []profileDemand
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
	d := demands{device: len(c.VolumeDevices) > 0}
	for i, policy := range c.ResizePolicy {
		if policy.RestartPolicy == corev1.RestartContainer {
			d.restarts = fmt.Sprintf(".resizePolicy[%d].restartPolicy", i)
		}
	}
	if hooks := c.Lifecycle; hooks != nil {
		d.addSleep(".lifecycle.postStart", hooks.PostStart)
		d.addSleep(".lifecycle.preStop", hooks.PreStop)
	}
	if sc := c.SecurityContext; sc != nil {
		members, _ := raw["securityContext"].(map[string]any)
		d.addSecurity(sc, members, name)
	}
	for _, claim := range c.Resources.Claims {
		d.claims = append(d.claims, claim.Name)
	}
	d.addVolumes(c, declared)
	if d.refusedBy == nil && d.restarts == "" && d.sleep == 0 && d.volumes == nil && d.claims == nil {
		return nil
	}
	return &d
}

func (d *demands) addSleep(hook string, h *corev1.LifecycleHandler) {
	if h != nil && h.Sleep != nil && h.Sleep.Seconds > d.sleep {
		d.sleep, d.sleepField = h.Sleep.Seconds, hook+".sleep.seconds"
	}
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
	d.unmasked = sc.ProcMount != nil && *sc.ProcMount == corev1.UnmaskedProcMount
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
	const fixed, each = 512, 128 // with the members of securityContext; of volumes
	return fixed + len(d.volumes)*each
}
