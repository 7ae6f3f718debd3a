package validation

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateVolumes(volumes []corev1.Volume, path *field.Path) field.ErrorList {
	names := sets.New[string]()
	var errs field.ErrorList
	for i := range volumes {
		errs = append(errs, validateUniqueName(volumes[i].Name, names, path.Index(i).Child("name"))...)
	}
	return errs
}

func volumeNames(volumes []corev1.Volume) sets.Set[string] {
	names := sets.New[string]()
	for i := range volumes {
		names.Insert(volumes[i].Name)
	}
	return names
}
