// Package validation knows which SidecarSets may be stored. It looks at one
// SidecarSet of the hub version, after defaulting, and at values that its caller
// has gathered; it knows neither the API server nor how a Pod is injected. It knows what a
// SidecarSet adds to containers. What Kubernetes says of containers, volumes and pull secrets,
// API servers are asked: see package podtemplate.
//
// All problems are reported together, each at its path and with its remedy.
package validation

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Environment is what rules need to know apart from the SidecarSet. If a look-up fails, the
// caller reports the error; the error is never a value in the Environment.
type Environment struct {
	// Base is the metadata of the SidecarSet that BaseOfCanary names; nil if that SidecarSet
	// does not exist.
	Base *metav1.ObjectMeta
	// Whitelist says which annotations patchPodMetadata may set. It is not read
	// unless the SidecarSet has some.
	Whitelist Whitelist
	// Conflicts are those with the stored, defaulted SidecarSets.
	Conflicts Conflicts
	// Stored are all stored, defaulted SidecarSets, with or without the one under review.
	Stored []*appsv1beta1.SidecarSet
	// Recorded is true if injectionStrategy.revision names a ControllerRevision
	// that exists and is this SidecarSet's. It is not read unless that is set.
	Recorded bool
	// Object is the SidecarSet as JSON, v1beta1 and defaulted.
	Object map[string]any
	// Replaced is the object that an update replaces, in the same form; nil on creation.
	Replaced map[string]any
	// SameWithoutImages is true if the update leaves the hash without
	// images as it is.
	SameWithoutImages bool
	// ExcludedNamespaces are the namespaces whose Pods are never injected.
	ExcludedNamespaces []string
}

// Bounds returns what is too large in a SidecarSet that is about to be created or, with old,
// to replace another one. object and replaced are both as JSON. Call it first: for a
// SidecarSet that it refuses, the other rules, and the look-ups that they need, would take
// long.
func Bounds(set, old *appsv1beta1.SidecarSet, object, replaced map[string]any) (errs field.ErrorList) {
	spec := place{field.NewPath("spec"), &errs}
	validateSize(object, replaced, spec)
	validateSelectorSizes(set, old, spec)
	return errs
}

// Create returns what is wrong with a SidecarSet that is about to be created.
func Create(set *appsv1beta1.SidecarSet, env Environment) field.ErrorList {
	errs := contentProblems(set, env)
	validateWhitelisted(set, env.Whitelist, place{field.NewPath("spec", "patchPodMetadata"), &errs})
	return errs
}

// contentProblems are all problems except those with the whitelist.
func contentProblems(set *appsv1beta1.SidecarSet, env Environment) (errs field.ErrorList) {
	metadata, spec := place{field.NewPath("metadata"), &errs}, place{field.NewPath("spec"), &errs}
	validateMetadata(&set.ObjectMeta, metadata)
	validateRequired(set, metadata)
	validateCanary(set, env.Base, metadata, spec)
	validateAnnotations(set.Annotations, metadata)
	validateSpec(&set.Spec, env.Recorded, spec)
	spec.add(env.Conflicts.refused...)
	return errs
}

// Update returns what is wrong with replacing old by set, whether or not it is wrong with old
// too.
func Update(set, old *appsv1beta1.SidecarSet, env Environment) field.ErrorList {
	errs := Create(set, env)
	validateCanaryUpdate(set, old, place{field.NewPath("metadata"), &errs})
	validateContainersUpdate(set.Spec.Containers, old.Spec.Containers, place{field.NewPath("spec", "containers"), &errs})
	return errs
}

func validateSpec(spec *appsv1beta1.SidecarSetSpec, recorded bool, path place) {
	validateSelector(spec.Selector, path.Child("selector"))
	if spec.NamespaceSelector != nil {
		validateSelector(spec.NamespaceSelector, path.Child("namespaceSelector"))
	}
	validateContainers(spec, path)
	validateUpdateStrategy(spec, path.Child("updateStrategy"))
	validateRevision(spec.InjectionStrategy.Revision, recorded, path.Child("injectionStrategy", "revision"))
	validatePatchPodMetadata(spec.PatchPodMetadata, path.Child("patchPodMetadata"))
}
