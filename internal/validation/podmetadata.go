package validation

import (
	"maps"
	"slices"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

func validatePatchPodMetadata(entries []appsv1beta1.SidecarSetPatchPodMetadata, path place) {
	seen := sets.New[string]()
	for i := range entries {
		validatePatchAnnotations(entries[i].Annotations, seen, path.Index(i).Child("annotations"))
		requireText(string(entries[i].PatchPolicy), path.Index(i).Child("patchPolicy"), "use Retain, Overwrite or MergePatchJson")
	}
}

// validatePatchAnnotations checks one entry, and adds its keys to seen.
func validatePatchAnnotations(annotations map[string]string, seen sets.Set[string], path place) {
	if len(annotations) == 0 {
		path.required("add the annotations to set, or remove the entry")
		return
	}
	path.add(sorted(apivalidation.ValidateAnnotations(annotations, path.Path))...)
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if appsv1beta1.OwnsPodAnnotation(key) {
			path.Key(key).forbidden("the operator itself writes this annotation on Pods; use another key")
		}
		validateUnique(key, seen, path.Key(key), "another entry sets this annotation too; remove it from one of them")
	}
}
