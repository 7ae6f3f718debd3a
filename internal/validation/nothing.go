package validation

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/selectors"
)

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
