package validation

import (
	"fmt"
	"regexp"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

var nameFormat = regexp.MustCompile(`^[a-zA-Z0-9-]+$`)

// maxNameLength leaves room for a revision's suffix, and makes the name usable
// as a label value.
const maxNameLength = 63

func validateMetadata(meta *metav1.ObjectMeta, path *field.Path) field.ErrorList {
	errs := sorted(apivalidation.ValidateObjectMeta(meta, false, validateName, path))
	for _, err := range errs {
		if err.Type == field.ErrorTypeForbidden {
			err.Detail += "; remove it"
		}
	}
	return errs
}

// validateName says what is wrong with a name, or with the prefix of one that
// the API server is about to complete.
func validateName(name string, _ bool) (problems []string) {
	if !nameFormat.MatchString(name) {
		problems = append(problems, "must consist of letters, digits and '-' only; choose another name")
	}
	if len(name) > maxNameLength {
		problems = append(problems, fmt.Sprintf("must be no more than %d characters; choose a shorter name", maxNameLength))
	}
	return problems
}

func validateCanary(set *appsv1beta1.SidecarSet, base *metav1.ObjectMeta) field.ErrorList {
	name := appsv1beta1.BaseOfCanary(set.Annotations)
	if name == "" {
		return nil
	}
	var errs field.ErrorList
	path := annotationPath(appsv1beta1.AnnotationBase)
	switch {
	case name == set.Name:
		errs = append(errs, field.Invalid(path, name, "a canary cannot be its own base; name the SidecarSet that it replaces"))
	case base == nil:
		errs = append(errs, field.Invalid(path, name, "no SidecarSet of this name exists; create the base first or correct the name"))
	case appsv1beta1.BaseOfCanary(base.Annotations) != "":
		errs = append(errs, field.Invalid(path, name, fmt.Sprintf("is itself a canary, of %s; name a SidecarSet that is none", appsv1beta1.BaseOfCanary(base.Annotations))))
	}
	if set.Spec.UpdateStrategy.Type != appsv1beta1.NotUpdateSidecarSetStrategyType {
		errs = append(errs, field.Invalid(field.NewPath("spec", "updateStrategy", "type"), set.Spec.UpdateStrategy.Type,
			"a canary does not update running Pods; set updateStrategy.type NotUpdate"))
	}
	return errs
}

func validateCanaryUpdate(set, old *appsv1beta1.SidecarSet) field.ErrorList {
	name, before := appsv1beta1.BaseOfCanary(set.Annotations), old.Annotations[appsv1beta1.AnnotationBase]
	if name == "" || name == before {
		return nil
	}
	return field.ErrorList{field.Invalid(annotationPath(appsv1beta1.AnnotationBase), name,
		fmt.Sprintf("a canary's base is immutable (it was %q); delete the SidecarSet and create it with its new base", before))}
}

func annotationPath(key string) *field.Path { return field.NewPath("metadata", "annotations").Key(key) }
