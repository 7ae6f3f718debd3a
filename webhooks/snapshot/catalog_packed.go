package snapshot

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sidecarset/operator/internal/inject"
)

// PackSidecarSet is the transform of the informer of SidecarSets: it leaves out
// what StripManagedFields does and what kubectl apply keeps for itself, and packs
// the spec, of which the informer's tree would take up to ten times the length.
// Who reads SidecarSets from the cache finds the spec as inject.Unpack expects it.
func PackSidecarSet(object any) (any, error) {
	object, err := StripManagedFields(object)
	if set, ok := object.(*unstructured.Unstructured); ok {
		unstructured.RemoveNestedField(set.Object, "metadata", "annotations", corev1.LastAppliedConfigAnnotation)
		inject.Pack(set.Object)
	}
	return object, err
}

// storedBytes estimates what the informer keeps of a SidecarSet.
func storedBytes(object *unstructured.Unstructured) int {
	const head = 4 << 10 // metadata and status
	spec, _ := object.Object["spec"].(string)
	return head + len(spec)
}
