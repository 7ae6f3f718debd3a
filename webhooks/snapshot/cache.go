package snapshot

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
)

// CacheOptions are the options of the manager's cache that a Store needs: watches begin again
// soon after an outage, objects have no managed fields, only ControllerRevisions of SidecarSets in
// one namespace are watched, and a read starts no informer. Other packages add ByObject
// options for the kinds that they read.
func CacheOptions(revisionNamespace string) cache.Options {
	carriesSidecarSet, _ := labels.NewRequirement(appsv1beta1.LabelSidecarSetName, selection.Exists, nil) // a constant is valid
	return cache.Options{
		NewInformer:                 newInformer,
		ReaderFailOnMissingInformer: true,
		DefaultTransform:            stripManagedFields,
		ByObject: map[client.Object]cache.ByObject{
			newSidecarSet(): {Transform: PackSidecarSet},
			&appsv1.ControllerRevision{}: {
				Namespaces: map[string]cache.Config{revisionNamespace: {}},
				Label:      labels.NewSelector().Add(*carriesSidecarSet),
			},
		},
	}
}

// stripManagedFields leaves out metadata.managedFields, which is often half of an object and
// which the operator never reads.
var stripManagedFields = cache.TransformStripManagedFields()

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
