package validation

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sidecarset/operator/internal/selectors"
)

// validateSelector refuses an absent selector, an empty one, and one that cannot be compiled.
func validateSelector(selector *metav1.LabelSelector, path place) {
	if selector == nil {
		path.required("say which Pods to inject, for example matchLabels: {app: web}")
		return
	}
	if selectors.IsEmpty(selector) {
		path.invalid(selector, "empty selector is not valid; add matchLabels or matchExpressions")
		return
	}
	before := len(*path.errs)
	validateTerms(selector, path)
	if _, err := metav1.LabelSelectorAsSelector(selector); err != nil && len(*path.errs) == before {
		path.invalid(selector, "cannot be compiled, correct it: "+err.Error())
	}
}

// validateTerms checks the labels and expressions of a selector that may be
// absent or empty.
func validateTerms(selector *metav1.LabelSelector, path place) {
	for _, err := range sorted(metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, path.Path)) {
		if err.Detail == "not a valid selector operator" {
			err.Detail += "; use In, NotIn, Exists or DoesNotExist"
		}
		path.add(err)
	}
}

// sorted sorts errors of apimachinery that come from a map. It adds the remedy to those about
// a value that is forbidden.
func sorted(errs field.ErrorList) field.ErrorList {
	texts := make(map[*field.Error]string, len(errs)) // one call of Error costs a microsecond
	for _, err := range errs {
		texts[err] = err.Error()
		if err.Type == field.ErrorTypeForbidden {
			err.Detail += "; remove it"
		}
	}
	slices.SortStableFunc(errs, func(a, b *field.Error) int { return cmp.Compare(texts[a], texts[b]) })
	return errs
}
