package doctor

import (
	"context"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/sidecarset/operator/internal/injectors"
)

// lookAtWebhooks finds out whether API servers call the operator for SidecarSets.
func (f *facts) lookAtWebhooks(_ context.Context, r *Result) {
	var mutating, validating bool
	for i := range f.mutating.Items {
		mutating = mutating || slices.ContainsFunc(f.mutating.Items[i].Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool {
			return f.asks(&w.ClientConfig, w.Rules)
		})
	}
	for i := range f.validating.Items {
		validating = validating || slices.ContainsFunc(f.validating.Items[i].Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool {
			return f.asks(&w.ClientConfig, w.Rules)
		})
	}
	if !mutating {
		r.add(Error, "MutatingWebhookConfiguration "+mutatingConfiguration, "docs/install.md#in-five-steps", applyAgain,
			"is missing, or does not call the operator for SidecarSets: they are stored without defaults and without the hashes of their revisions")
	}
	if !validating {
		r.add(Error, "ValidatingWebhookConfiguration "+validatingConfiguration, "docs/install.md#in-five-steps", applyAgain,
			"is missing, or does not call the operator for SidecarSets: they are stored unchecked")
	}
}

// asks reports whether a webhook of the operator is called for SidecarSets.
func (f *facts) asks(config *admissionregistrationv1.WebhookClientConfig, rules []admissionregistrationv1.RuleWithOperations) bool {
	return f.calls(config) && slices.ContainsFunc(rules, func(rule admissionregistrationv1.RuleWithOperations) bool {
		return slices.Contains(rule.Resources, "sidecarsets")
	})
}

// lookAtInjectors finds programs that inject the same SidecarSets.
func (f *facts) lookAtInjectors(_ context.Context, r *Result) {
	for i := range f.mutating.Items {
		c := &f.mutating.Items[i]
		if other := injectors.Find(c); other != nil {
			r.add(Error, "MutatingWebhookConfiguration "+c.Name, "docs/security.md#another-injector", "kubectl sidecarset migrate prints the steps", "%s", other.Message())
		}
	}
}
