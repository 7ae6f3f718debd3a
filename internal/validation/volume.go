package validation

import (
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// validateVolumes checks the commonest faults of volumes, for files without a cluster.
func validateVolumes(volumes []corev1.Volume, path place) {
	names := sets.New[string]()
	for i := range volumes {
		at := path.Index(i)
		validateUniqueName(volumes[i].Name, names, at.Child("name"))
		kinds := kindsOf(&volumes[i].VolumeSource)
		for _, kind := range kinds[min(1, len(kinds)):] {
			at.Child(kind).forbidden("must not be set together with " + kinds[0] + "; remove one of them")
		}
	}
}

// kindsOf are the members of a volume that say of which kind it is, emptyDir first: API servers
// complain about the others.
func kindsOf(source *corev1.VolumeSource) (kinds []string) {
	const emptyDir = "emptyDir"
	value := reflect.ValueOf(source).Elem()
	for name, f := range fieldsOf(value) {
		if name != emptyDir && !f.IsNil() {
			kinds = append(kinds, name)
		}
	}
	if source.EmptyDir != nil {
		kinds = slices.Insert(kinds, 0, emptyDir)
	}
	return kinds
}

func volumesByName(volumes []corev1.Volume) map[string]*corev1.Volume {
	byName := make(map[string]*corev1.Volume, len(volumes))
	for i := range volumes {
		byName[volumes[i].Name] = &volumes[i]
	}
	return byName
}
