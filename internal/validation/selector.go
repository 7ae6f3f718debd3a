package validation

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sidecarset/operator/internal/selectors"
)

// validateSelector refuses an absent selector, one that says nothing, and one
// that cannot be compiled.
func validateSelector(selector *metav1.LabelSelector, path *field.Path) field.ErrorList {
	if selector == nil {
		return field.ErrorList{field.Required(path, "say which Pods to inject, for example matchLabels: {app: web}")}
	}
	if selectors.IsEmpty(selector) {
		return field.ErrorList{field.Invalid(path, selector, "empty selector is not valid; add matchLabels or matchExpressions")}
	}
	errs := validateTerms(selector, path)
	if _, err := metav1.LabelSelectorAsSelector(selector); err != nil && len(errs) == 0 {
		errs = append(errs, field.Invalid(path, selector, "cannot be compiled, correct it: "+err.Error()))
	}
	return errs
}

// validateTerms checks the labels and expressions of a selector that may be
// absent or empty.
func validateTerms(selector *metav1.LabelSelector, path *field.Path) field.ErrorList {
	errs := sorted(metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, path))
	for _, err := range errs {
		switch {
		case err.Detail == "not a valid selector operator":
			err.Detail += "; use In, NotIn, Exists or DoesNotExist"
		case err.Type == field.ErrorTypeForbidden:
			err.Detail += "; remove it"
		}
	}
	return errs
}

// sorted gives errors that stem from a map an order.
func sorted(errs field.ErrorList) field.ErrorList {
	slices.SortStableFunc(errs, func(a, b *field.Error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errs
}
