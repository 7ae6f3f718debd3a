package snapshot

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/sidecarset/operator/internal/inject"
)

// PackSidecarSet is the transform of the informer of SidecarSets. It leaves out the managed
// fields and the annotation of kubectl apply, and packs the spec: decoded, the spec would
// take up to ten times the memory. Code that reads a SidecarSet from the cache has to use
// inject.Unpack.
func PackSidecarSet(object any) (any, error) {
	object, err := stripManagedFields(object)
	if set, ok := object.(*unstructured.Unstructured); ok {
		unstructured.RemoveNestedField(set.Object, "metadata", "annotations", corev1.LastAppliedConfigAnnotation)
		inject.Pack(set.Object)
	}
	return object, err
}

// storedBytes estimates the memory that the informer needs for a SidecarSet.
func storedBytes(object *unstructured.Unstructured) int {
	const head = 4 << 10 // metadata and status
	spec, _ := object.Object["spec"].(string)
	return head + len(spec)
}
