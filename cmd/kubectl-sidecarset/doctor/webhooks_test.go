package doctor

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const operatorNamespace = "sidecarset-system"

// factsOf are those of an installation with these configurations.
func factsOf(all ...admissionregistrationv1.MutatingWebhookConfiguration) *facts {
	f := &facts{installation: newInstallation(operatorNamespace, nil, nil)}
	f.mutating.Items = all
	return f
}

func TestWebhooksForSidecarSets(t *testing.T) {
	f := factsOf()
	look := func(r *Result) { f.lookAtWebhooks(t.Context(), r) }
	expect(t, look, "error MutatingWebhookConfiguration sidecarset-mutating-webhook|is missing|apply", "error ValidatingWebhookConfiguration|is missing|apply")
	rules := []admissionregistrationv1.RuleWithOperations{{Rule: admissionregistrationv1.Rule{Resources: []string{"sidecarsets"}}}}
	config := admissionregistrationv1.WebhookClientConfig{URL: new("https://10.0.0.1:9443/validate")}
	f.validating.Items = []admissionregistrationv1.ValidatingWebhookConfiguration{{
		ObjectMeta: metav1.ObjectMeta{Name: validatingConfiguration}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{ClientConfig: config, Rules: rules}},
	}}
	// One of the two is enough to know where the operator is called.
	f.installation = newInstallation(operatorNamespace, nil, f.called())
	expect(t, look, "error MutatingWebhookConfiguration")
}

func TestInjectors(t *testing.T) {
	rule := func(group, resource string) []admissionregistrationv1.RuleWithOperations {
		return []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, Resources: []string{resource}},
		}}
	}
	f := factsOf(admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "kruise"}, Webhooks: []admissionregistrationv1.MutatingWebhook{
		{Name: "mpod.kb.io", Rules: rule("", "pods"), ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "kruise-system", Name: "kruise", Path: new("/mutate-pod")}}},
		{Name: "set.kb.io", Rules: rule("apps.kruise.io", "sidecarsets")},
	}})
	expect(t, func(r *Result) { f.lookAtInjectors(t.Context(), r) }, "error|OpenKruise injects as well|migrate")
}
