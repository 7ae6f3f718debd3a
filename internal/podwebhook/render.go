package podwebhook

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Settings are common to all webhooks.
type Settings struct {
	// Namespace is the operator's, and NamespaceUID its identity: the objects have it
	// as owner, so they are deleted with it.
	Namespace    string
	NamespaceUID types.UID
	// Ownerless leaves the owner of objects as it is: the API server does not let the
	// operator change it.
	Ownerless bool
	// ExcludedNamespaces are those for whose Pods API servers never call the operator;
	// they include Namespace.
	ExcludedNamespaces []string
	// Service is how API servers reach the operator, without a path. URL, if not "", is
	// used instead: a prefix that paths are appended to.
	Service admissionregistrationv1.ServiceReference
	URL     string
	// Reinvocation is Never if empty.
	Reinvocation admissionregistrationv1.ReinvocationPolicyType
	// Bundle is the CA bundle of all webhooks. Review takes that of the shard instead.
	Bundle []byte
}

const (
	probeSuffix         = ".probe.sidecarset.io"
	probeTimeoutSeconds = 1
)

// webhook renders a webhook, but for the path of its shard. It shares memory with the webhook.
func (s *Settings) webhook(e *Webhook, excluded []string) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{
		Name:                    e.Name,
		ClientConfig:            admissionregistrationv1.WebhookClientConfig{CABundle: s.Bundle},
		Rules:                   podRules,
		FailurePolicy:           new(e.FailurePolicy),
		MatchPolicy:             new(admissionregistrationv1.Equivalent),
		NamespaceSelector:       allowed(e.NamespaceSelector, excluded),
		ObjectSelector:          orEverything(e.Selector),
		SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
		TimeoutSeconds:          new(e.TimeoutSeconds),
		AdmissionReviewVersions: []string{"v1"},
		ReinvocationPolicy:      new(cmp.Or(s.Reinvocation, admissionregistrationv1.NeverReinvocationPolicy)),
	}
}

// probe renders the webhook that shows which serials of a shard an API server uses.
func (s *Settings) probe(shard int, r *record) admissionregistrationv1.MutatingWebhook {
	serials := []string{strconv.FormatUint(r.Serial, 10)}
	for _, serial := range r.Earlier {
		serials = append(serials, strconv.FormatUint(serial, 10))
	}
	return admissionregistrationv1.MutatingWebhook{
		Name:          ConfigurationName(shard) + probeSuffix,
		ClientConfig:  s.clientConfig(ProbePath(shard)),
		Rules:         rules("configmaps"),
		FailurePolicy: new(admissionregistrationv1.Ignore), // after a failed call the answer proves nothing
		MatchPolicy:   new(admissionregistrationv1.Equivalent),
		NamespaceSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{corev1.LabelMetadataName: s.Namespace},
		},
		ObjectSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: ProbeLabel(shard), Operator: metav1.LabelSelectorOpIn, Values: serials}},
		},
		SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
		TimeoutSeconds:          new(int32(probeTimeoutSeconds)),
		AdmissionReviewVersions: []string{"v1"},
		ReinvocationPolicy:      new(admissionregistrationv1.NeverReinvocationPolicy),
	}
}

func (s *Settings) clientConfig(path string) admissionregistrationv1.WebhookClientConfig {
	config := admissionregistrationv1.WebhookClientConfig{CABundle: s.Bundle}
	if s.URL != "" {
		config.URL = new(strings.TrimSuffix(s.URL, "/") + path)
		return config
	}
	service := s.Service
	service.Path = new(path)
	if service.Port == nil {
		service.Port = new(int32(443))
	}
	config.Service = &service
	return config
}

// excluded are the excluded namespaces in a fixed order.
func (s *Settings) excluded() []string {
	return slices.Compact(slices.Sorted(slices.Values(s.ExcludedNamespaces)))
}

// allowed adds the excluded namespaces to a user's selector. The result shares memory with it.
func allowed(selector *metav1.LabelSelector, excluded []string) *metav1.LabelSelector {
	out := *orEverything(selector)
	if len(excluded) > 0 {
		out.MatchExpressions = append(slices.Clip(out.MatchExpressions),
			metav1.LabelSelectorRequirement{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: excluded})
	}
	return &out
}

func orEverything(selector *metav1.LabelSelector) *metav1.LabelSelector {
	if selector == nil {
		return &metav1.LabelSelector{}
	}
	return selector
}

var podRules = rules("pods")

func rules(resource string) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource},
			Scope: new(admissionregistrationv1.NamespacedScope),
		},
	}}
}

func same(a, b admissionregistrationv1.MutatingWebhook) bool {
	return equality.Semantic.DeepEqual(a, b)
}

// owner is the UID of the Namespace that an object belongs to, "" if it belongs to none.
func owner(c *admissionregistrationv1.MutatingWebhookConfiguration) types.UID {
	for _, owner := range c.OwnerReferences {
		if owner.Kind == "Namespace" && owner.APIVersion == "v1" {
			return owner.UID
		}
	}
	return ""
}

// SameOwner reports whether two versions of an object belong to the same Namespace, or both to none.
func SameOwner(a, b *admissionregistrationv1.MutatingWebhookConfiguration) bool {
	return owner(a) == owner(b)
}
