// Package validation knows which SidecarSets may be stored. It looks at one
// SidecarSet of the hub version, after defaulting, and at values that its caller
// has gathered; it knows neither the API server nor how a Pod is injected. What API servers
// check about containers and volumes is asked of them: see package podtemplate. Here are the
// commonest of these faults only, for files without a cluster.
//
// All problems are reported at once, each at its path and with its remedy.
package validation

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Environment is what rules need to know besides the SidecarSet. If a look-up fails, the
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
	// SameWithoutImages is true if the update leaves the content hash without
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
	validateNulls(env.Object, spec.Child("imagePullSecrets"))
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
	validateVolumes(spec.Volumes, path.Child("volumes"))
	validateUpdateStrategy(spec, path.Child("updateStrategy"))
	validateRevision(spec.InjectionStrategy.Revision, recorded, path.Child("injectionStrategy", "revision"))
	validatePatchPodMetadata(spec.PatchPodMetadata, path.Child("patchPodMetadata"))
}

// Joined returns the problems that the rules have found, and those that an API server refuses.
// Of two problems in one place the first one has the remedy.
func Joined(found, refused field.ErrorList) field.ErrorList {
	known := sets.New[string]()
	for _, err := range found {
		known.Insert(err.Field)
	}
	return append(found, slices.DeleteFunc(slices.Clone(refused), func(err *field.Error) bool { return known.Has(err.Field) })...)
}

// Together is Joined for warnings.
func Together(found, more []string) []string {
	known := sets.New[string]()
	for _, line := range found {
		known.Insert(fieldOf(line))
	}
	return append(found, slices.DeleteFunc(slices.Clone(more), func(line string) bool { return known.Has(fieldOf(line)) })...)
}

// fieldOf is the field that a warning begins with.
func fieldOf(line string) string {
	path, _, _ := strings.Cut(line, ": ")
	return path
}
