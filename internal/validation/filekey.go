package validation

import (
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// validateFileKeyVolumes checks that the file of a variable can exist: the kubelet reads
// variables from volumes of kind emptyDir only.
func validateFileKeyVolumes(spec *appsv1beta1.SidecarSetSpec, errs *field.ErrorList) {
	volumes := volumesByName(spec.Volumes)
	for c := range containersOf(spec) {
		for i := range c.Env {
			source := c.Env[i].ValueFrom
			if source == nil || source.FileKeyRef == nil || source.FileKeyRef.VolumeName == "" {
				continue
			}
			name := source.FileKeyRef.VolumeName
			at := place{c.path.Child("env").Index(i).Child("valueFrom", "fileKeyRef", "volumeName"), errs}
			switch volume := volumes[name]; {
			case volume == nil:
				at.invalid(name, "is not a volume of this SidecarSet; declare it in spec.volumes, and mount it in the container that writes the file")
			case volume.EmptyDir == nil && volume.VolumeSource != (corev1.VolumeSource{}):
				at.invalid(name, "is not an emptyDir volume, and variables can be read only from files in emptyDir volumes; name another volume")
			}
		}
	}
}

// located is a container of a SidecarSet and its place.
type located struct {
	*appsv1beta1.SidecarContainer
	path *field.Path
	init bool // of initContainers
}

// containersOf yields the containers of a SidecarSet, the init containers first.
func containersOf(spec *appsv1beta1.SidecarSetSpec) iter.Seq[located] {
	return func(yield func(located) bool) {
		for i := range spec.InitContainers {
			if !yield(located{&spec.InitContainers[i], field.NewPath("spec", "initContainers").Index(i), true}) {
				return
			}
		}
		for i := range spec.Containers {
			if !yield(located{&spec.Containers[i], field.NewPath("spec", "containers").Index(i), false}) {
				return
			}
		}
	}
}

// namesInPod are the names that the container has in Pods.
func (c located) namesInPod() []string {
	if c.init {
		return c.PodInitContainerNames()
	}
	return c.PodContainerNames()
}

// usedVolumes are the names of the volumes that are added to Pods.
func usedVolumes(spec *appsv1beta1.SidecarSetSpec) sets.Set[string] {
	used := sets.New[string]()
	for c := range containersOf(spec) {
		used.Insert(slices.Collect(c.UsedVolumes())...)
	}
	return used
}
