package validation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
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

// SelectsNothing returns why no Pod can be selected, whatever its labels and those of its
// Namespace are, and what to do; "" if some Pod can. Every Namespace has its name as a label;
// the excluded Namespaces do not count. Selectors that cannot be compiled are reported by
// other rules.
func SelectsNothing(spec *appsv1beta1.SidecarSetSpec, excludedNamespaces []string) string {
	if key := selectors.Contradiction(spec.Selector); key != "" {
		return fmt.Sprintf("spec.selector: no Pod can be selected, because what it asks of label %s contradicts itself; correct it", key)
	}
	if spec.NamespaceSelector == nil {
		return ""
	}
	named := spec.NamespaceSelector.DeepCopy()
	named.MatchExpressions = append(named.MatchExpressions, metav1.LabelSelectorRequirement{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpExists})
	if key := selectors.Contradiction(named); key != "" {
		itself := "itself"
		if key == corev1.LabelMetadataName {
			itself += " or the fact that every Namespace has it"
		}
		return fmt.Sprintf("spec.namespaceSelector: no Namespace can be selected, because what it asks of label %s contradicts %s; correct it", key, itself)
	}
	if len(excludedNamespaces) == 0 {
		return ""
	}
	named.MatchExpressions = append(named.MatchExpressions, metav1.LabelSelectorRequirement{
		Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: excludedNamespaces,
	})
	if selectors.Contradiction(named) != "" {
		return fmt.Sprintf("spec.namespaceSelector: selects no other Namespaces than those whose Pods are never injected (%s); "+
			"name others, or have the operator's administrator change the excluded namespaces", strings.Join(slices.Sorted(slices.Values(excludedNamespaces)), ", "))
	}
	return ""
}
