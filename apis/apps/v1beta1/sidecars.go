package v1beta1

import (
	"fmt"
	"iter"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// SidecarMembers returns the members of a container of a SidecarSet that no container of a Pod
// has.
func SidecarMembers() []string {
	return []string{"podInjectPolicy", "upgradeStrategy", "shareVolumePolicy", "shareVolumeDevicePolicy", "transferEnv", "resourcesPolicy"}
}

// IsNative reports whether an init container is a native sidecar: one that runs
// as long as the Pod. It means nothing for an element of spec.containers.
func (c *SidecarContainer) IsNative() bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// IsHotUpgrade reports whether the sidecar asks for a pair of containers. An init
// container that is not native gets none: it ends before another could take over.
func (c *SidecarContainer) IsHotUpgrade() bool {
	return c.UpgradeStrategy.UpgradeType == SidecarContainerHotUpgrade
}

// HotUpgradeNames returns the names that the containers of a hot-upgrade sidecar
// have in a Pod: the one that works first, and the idle one.
func HotUpgradeNames(sidecar string) (working, idle string) { return sidecar + "-1", sidecar + "-2" }

// HotUpgradeProblem returns why no Pod can have the pair of a hot-upgrade sidecar, and the member
// that is wrong; "" if one can.
func (c *SidecarContainer) HotUpgradeProblem() (member, problem string) {
	working, _ := HotUpgradeNames(c.Name)
	switch {
	case c.UpgradeStrategy.HotUpgradeEmptyImage == "":
		return "upgradeStrategy.hotUpgradeEmptyImage", "is missing: name the image that the idle container of the hot-upgrade pair runs"
	case len(working) > validation.DNS1123LabelMaxLength:
		return "name", fmt.Sprintf("is too long for a hot upgrade: %q and its sibling may have %d characters at most, so shorten the name", working, validation.DNS1123LabelMaxLength)
	}
	return "", ""
}

// PodInitContainerNames returns the names that an element of spec.initContainers
// has in a Pod: its own, or both of a hot-upgrade pair.
func (c *SidecarContainer) PodInitContainerNames() []string {
	if !c.IsNative() {
		return []string{c.Name}
	}
	return c.PodContainerNames()
}

// PodContainerNames returns the names that an element of spec.containers has in a
// Pod: its own, or both of a hot-upgrade pair, the working one first.
func (c *SidecarContainer) PodContainerNames() []string {
	if !c.IsHotUpgrade() {
		return []string{c.Name}
	}
	working, idle := HotUpgradeNames(c.Name)
	return []string{working, idle}
}

// UsedVolumes yields the names of the volumes that the container mounts, as a file system or as a
// device, or reads a variable from. A name may come more than once.
func (c *SidecarContainer) UsedVolumes() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range c.VolumeMounts {
			if !yield(c.VolumeMounts[i].Name) {
				return
			}
		}
		for i := range c.VolumeDevices {
			if !yield(c.VolumeDevices[i].Name) {
				return
			}
		}
		for i := range c.Env {
			if from := c.Env[i].ValueFrom; from != nil && from.FileKeyRef != nil && !yield(from.FileKeyRef.VolumeName) {
				return
			}
		}
	}
}

// OwnsPodAnnotation reports whether the operator itself keeps this annotation on
// Pods. A SidecarSet may not set it.
func OwnsPodAnnotation(key string) bool {
	switch key {
	case AnnotationHash, AnnotationHashWithoutImage, AnnotationInjectedList,
		AnnotationInPlaceUpdateState, AnnotationWorkingHotUpgradeContainer:
		return true
	}
	return strings.HasPrefix(key, AnnotationVersionPrefix) ||
		strings.HasPrefix(key, AnnotationVersionAltPrefix) ||
		strings.HasPrefix(key, "sidecarset.io/")
}
