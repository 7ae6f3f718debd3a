package validation

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Warnings returns what may be stored and will probably not do what its author
// expects.
func Warnings(set *appsv1beta1.SidecarSet, env Environment) []string {
	var warnings []string
	for _, namespace := range namedNamespaces(set.Spec.NamespaceSelector) {
		if slices.Contains(env.ExcludedNamespaces, namespace) {
			warnings = append(warnings, fmt.Sprintf("spec.namespaceSelector: names %s, whose Pods are never injected; the operator's administrator can change the excluded namespaces", namespace))
		}
	}
	return warnings
}

// namedNamespaces are the namespaces that a selector chooses by name.
func namedNamespaces(selector *metav1.LabelSelector) []string {
	if selector == nil {
		return nil
	}
	var names []string
	if name, ok := selector.MatchLabels[corev1.LabelMetadataName]; ok {
		names = append(names, name)
	}
	for _, e := range selector.MatchExpressions {
		if e.Key == corev1.LabelMetadataName && e.Operator == metav1.LabelSelectorOpIn {
			names = append(names, e.Values...)
		}
	}
	return names
}
