package config

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRequired(t *testing.T) {
	documents := built(t, "required")
	var policy admissionregistrationv1.ValidatingAdmissionPolicy
	convert(t, object(t, documents, "ValidatingAdmissionPolicy", "sidecarset-required"), &policy)
	// With Fail, an API server that has just started would refuse every Pod of the cluster.
	if failure := policy.Spec.FailurePolicy; failure == nil || *failure != admissionregistrationv1.Ignore {
		t.Errorf("the failure policy is %v, want Ignore", failure)
	}
	flags, err := os.ReadFile("../docs/reference/flags.md") // compared with the program elsewhere
	if err != nil {
		t.Fatal(err)
	}
	byDefault := regexp.MustCompile("`--excluded-namespaces=NAMESPACES` \\| `([^`]+)`").FindSubmatch(flags)
	if byDefault == nil {
		t.Fatal("flags.md does not have the default of --excluded-namespaces")
	}
	want := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn,
		Values: append(strings.Split(string(byDefault[1]), ","), "sidecarset-system"),
	}}}
	if diff := cmp.Diff(want, policy.Spec.MatchConstraints.NamespaceSelector); diff != "" {
		t.Errorf("namespaces (-flag and the operator's own +policy):\n%s", diff)
	}
	for name, actions := range map[string][]admissionregistrationv1.ValidationAction{
		"sidecarset-required":      {admissionregistrationv1.Deny},
		"sidecarset-required-warn": {admissionregistrationv1.Warn, admissionregistrationv1.Audit},
	} {
		var binding admissionregistrationv1.ValidatingAdmissionPolicyBinding
		convert(t, object(t, documents, "ValidatingAdmissionPolicyBinding", name), &binding)
		if binding.Spec.PolicyName != policy.Name || !slices.Equal(binding.Spec.ValidationActions, actions) {
			t.Errorf("binding %s: %+v", name, binding.Spec)
		}
	}
	for _, profile := range everyProfile(t) { // beside each profile, not in it
		if text := render(t, profile); strings.Contains(text, "kind: ValidatingAdmissionPolicy") {
			t.Errorf("%s has a ValidatingAdmissionPolicy", profile)
		}
	}
}
