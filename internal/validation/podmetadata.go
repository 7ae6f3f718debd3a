package validation

import (
	"maps"
	"slices"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

func validatePatchPodMetadata(entries []appsv1beta1.SidecarSetPatchPodMetadata, path *field.Path) field.ErrorList {
	seen := sets.New[string]()
	var errs field.ErrorList
	for i := range entries {
		errs = append(errs, validatePatchAnnotations(entries[i].Annotations, seen, path.Index(i).Child("annotations"))...)
		if entries[i].PatchPolicy == "" {
			errs = append(errs, field.Required(path.Index(i).Child("patchPolicy"), "use Retain, Overwrite or MergePatchJson"))
		}
	}
	return errs
}

// validatePatchAnnotations checks one entry, and adds its keys to seen.
func validatePatchAnnotations(annotations map[string]string, seen sets.Set[string], path *field.Path) field.ErrorList {
	if len(annotations) == 0 {
		return field.ErrorList{field.Required(path, "add the annotations to set, or remove the entry")}
	}
	errs := sorted(apivalidation.ValidateAnnotations(annotations, path))
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if appsv1beta1.OwnsPodAnnotation(key) {
			errs = append(errs, field.Forbidden(path.Key(key), "the operator itself writes this annotation on Pods; use another key"))
		}
		if seen.Has(key) {
			errs = append(errs, duplicate(path.Key(key), key, "another entry sets this annotation too; remove it from one of them"))
		}
		seen.Insert(key)
	}
	return errs
}
