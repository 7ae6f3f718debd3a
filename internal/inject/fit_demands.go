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
	refusedBy map[corev1.OSName][]string // members of securityContext that a Pod of the operating system cannot have
	claims    []string                   // of resources.claims, by name
	volumes   []volumeDemand
}

// volumeDemand is a volume that the Pod must have.
type volumeDemand struct{ member, name string }

// linuxOnly are the members of securityContext that a Pod of Windows cannot have, and that no
// supported API server drops.
var linuxOnly = []string{
	"allowPrivilegeEscalation", "appArmorProfile", "capabilities", "privileged", "readOnlyRootFilesystem",
	"runAsGroup", "runAsUser", "seLinuxOptions", "seccompProfile",
}

// newDemands returns what the sidecar asks for; nil if it asks for nothing. declared are the
// volumes of the SidecarSet.
func newDemands(c *appsv1beta1.SidecarContainer, raw map[string]any, declared []corev1.Volume) *demands {
	var d demands
	if members, _ := raw["securityContext"].(map[string]any); members != nil {
		isAbsent := func(member string) bool { return members[member] == nil }
		d.refusedBy = map[corev1.OSName][]string{
			corev1.Windows: slices.DeleteFunc(slices.Clone(linuxOnly), isAbsent),
			corev1.Linux:   slices.DeleteFunc([]string{"windowsOptions"}, isAbsent),
		}
	}
	for _, claim := range c.Resources.Claims {
		d.claims = append(d.claims, claim.Name)
	}
	demand := func(member, name string) {
		if !slices.ContainsFunc(declared, func(v corev1.Volume) bool { return v.Name == name }) {
			d.volumes = append(d.volumes, volumeDemand{member, name})
		}
	}
	for i, mount := range c.VolumeMounts {
		demand(fmt.Sprintf(".volumeMounts[%d].name", i), mount.Name)
	}
	for i, device := range c.VolumeDevices {
		demand(fmt.Sprintf(".volumeDevices[%d].name", i), device.Name)
	}
	if d.refusedBy == nil && d.claims == nil && d.volumes == nil {
		return nil
	}
	return &d
}

// bytes estimates the memory that the demands take.
func (d *demands) bytes() int {
	if d == nil {
		return 0
	}
	const fixed, each = 512, 128 // with the members of securityContext; of volumes and claims
	return fixed + (len(d.volumes)+len(d.claims))*each
}
