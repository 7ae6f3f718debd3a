package validation

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// validateFileKeyVolumes checks that the file of a variable can exist: the kubelet reads
// variables from volumes of kind emptyDir only.
func validateFileKeyVolumes(spec *appsv1beta1.SidecarSetSpec, path place) {
	volumes := volumesByName(spec.Volumes)
	check := func(containers []appsv1beta1.SidecarContainer, path place) {
		for i := range containers {
			for j := range containers[i].Env {
				source := containers[i].Env[j].ValueFrom
				if source == nil || source.FileKeyRef == nil || source.FileKeyRef.VolumeName == "" {
					continue
				}
				name, at := source.FileKeyRef.VolumeName, path.Index(i).Child("env").Index(j).Child("valueFrom", "fileKeyRef", "volumeName")
				switch volume := volumes[name]; {
				case volume == nil:
					at.invalid(name, "is not a volume of this SidecarSet; declare it in spec.volumes, and mount it in the container that writes the file")
				case volume.EmptyDir == nil && volume.VolumeSource != (corev1.VolumeSource{}):
					at.invalid(name, "is not an emptyDir volume, and variables can be read only from files in emptyDir volumes; name another volume")
				}
			}
		}
	}
	check(spec.InitContainers, path.Child("initContainers"))
	check(spec.Containers, path.Child("containers"))
}

// usedVolumes are the names of the volumes that are added to Pods: those that a container
// mounts, as a file system or as a device, or reads a variable from.
func usedVolumes(spec *appsv1beta1.SidecarSetSpec) map[string]bool {
	used := make(map[string]bool)
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for i := range c.VolumeMounts {
			used[c.VolumeMounts[i].Name] = true
		}
		for i := range c.VolumeDevices {
			used[c.VolumeDevices[i].Name] = true
		}
		for i := range c.Env {
			if from := c.Env[i].ValueFrom; from != nil && from.FileKeyRef != nil {
				used[from.FileKeyRef.VolumeName] = true
			}
		}
	}
	return used
}
