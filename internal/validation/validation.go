// Package validation knows which SidecarSets may be stored. It looks at one
// SidecarSet of the hub version, after defaulting, and at values that its caller
// has gathered; it knows neither the API server nor how a Pod is injected.
//
// All problems are reported at once, each at its path and with its remedy.
package validation

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Environment is what rules need to know besides the SidecarSet. A look-up that
// failed is the caller's error to report, never a value in here.
type Environment struct {
	// Base is the metadata of the SidecarSet that BaseOfCanary names; nil if there
	// is none of that name.
	Base *metav1.ObjectMeta
	// Whitelist says which annotations patchPodMetadata may set. It is not read
	// unless the SidecarSet has some.
	Whitelist Whitelist
	// Others are the SidecarSets that are stored, defaulted; this one may be
	// among them.
	Others []appsv1beta1.SidecarSet
	// Recorded is true if injectionStrategy.revision names a ControllerRevision
	// that exists and is this SidecarSet's. It is not read unless that is set.
	Recorded bool
	// Object is the SidecarSet as JSON, v1beta1 and defaulted, with the members
	// that this build does not know. Without it they are taken not to exist.
	Object map[string]any
	// Replaced is what an update replaces, in the same form; nil on creation.
	Replaced map[string]any
	// SameWithoutImages is true if the update leaves the content hash without
	// images as it is.
	SameWithoutImages bool
	// ExcludedNamespaces are the namespaces whose Pods are never injected.
	ExcludedNamespaces []string
	// ServerMinor is the minor version of the API server; 0 if it is not known. It
	// is not read unless DependsOnVersion says so.
	ServerMinor int
}

// Create returns what is wrong with a SidecarSet that is about to be created.
func Create(set *appsv1beta1.SidecarSet, env Environment) field.ErrorList {
	errs := validateMetadata(&set.ObjectMeta, field.NewPath("metadata"))
	errs = append(errs, validateCanary(set, env.Base)...)
	errs = append(errs, validateAnnotations(set.Annotations)...)
	errs = append(errs, withoutGuesses(validateSpec(&set.Spec, env.Recorded, field.NewPath("spec")), env.Object)...)
	errs = append(errs, validateSize(env.Object, env.Replaced)...)
	errs = append(errs, validateNulls(env.Object)...)
	errs = append(errs, validateWhitelisted(set, env.Whitelist)...)
	return append(errs, validateConflicts(set, env.Others)...)
}

// Update returns what is wrong with replacing old by set.
func Update(set, old *appsv1beta1.SidecarSet, env Environment) field.ErrorList {
	errs := Create(set, env)
	errs = append(errs, validateCanaryUpdate(set, old)...)
	return append(errs, validateContainersUpdate(set.Spec.Containers, old.Spec.Containers, field.NewPath("spec", "containers"))...)
}

func validateSpec(spec *appsv1beta1.SidecarSetSpec, recorded bool, path *field.Path) field.ErrorList {
	errs := validateSelector(spec.Selector, path.Child("selector"))
	if spec.NamespaceSelector != nil {
		errs = append(errs, validateSelector(spec.NamespaceSelector, path.Child("namespaceSelector"))...)
	}
	errs = append(errs, validateContainers(spec, path)...)
	errs = append(errs, validateVolumes(spec.Volumes, path.Child("volumes"))...)
	errs = append(errs, validateUpdateStrategy(spec, path.Child("updateStrategy"))...)
	errs = append(errs, validateRevision(spec.InjectionStrategy.Revision, recorded, path.Child("injectionStrategy", "revision"))...)
	return append(errs, validatePatchPodMetadata(spec.PatchPodMetadata, path.Child("patchPodMetadata"))...)
}
