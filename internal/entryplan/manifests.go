package entryplan

import (
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// sidecarSetRules are the rules of the webhooks for SidecarSets in the manifests. The entry
// of static mode has podRules.
var (
	sidecarSetRules = []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{appsv1beta1.GroupVersion.Group}, APIVersions: []string{"v1alpha1", "v1beta1"}, Resources: []string{"sidecarsets"},
			Scope: new(admissionregistrationv1.ClusterScope),
		},
	}}
	manifestRules = map[string][]admissionregistrationv1.RuleWithOperations{
		"mutate.sidecarsets.sidecarset.io":   sidecarSetRules,
		"validate.sidecarsets.sidecarset.io": sidecarSetRules,
		"inject.pods.sidecarset.io":          podRules,
	}
)

// staticBarrierName is the name of the barrier entry in config/static.
const staticBarrierName = "static.barrier.sidecarset.io"

// Repair is what to do with one webhook of a configuration of the manifests.
type Repair struct {
	Index int
	// Rules are the rules that the webhook has to have; nil if the webhook has to be removed.
	Rules []admissionregistrationv1.RuleWithOperations
}

// Repairs returns what to undo in a configuration of the manifests, the last webhook first:
// webhooks with rules for anything but SidecarSets and new Pods. It reads names, rules and
// namespace selectors. Another program has added or widened such a webhook. Without the
// repair, a user who may edit the object could have Secrets sent to a server. An
// administrator may change everything else, and the rules as long as they are for
// SidecarSets or new Pods. The barrier of static mode is an exception: its rules are for
// ConfigMaps, and its namespace selector for the operator's Namespace.
func Repairs(webhooks []admissionregistrationv1.MutatingWebhook, namespace string) (repairs []Repair) {
	for i, w := range slices.Backward(webhooks) {
		if !slices.ContainsFunc(w.Rules, tooWide) || isStaticBarrier(&w, namespace) {
			continue
		}
		repairs = append(repairs, Repair{i, manifestRules[w.Name]})
	}
	return repairs
}

func isStaticBarrier(w *admissionregistrationv1.MutatingWebhook, namespace string) bool {
	own := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
	return w.Name == staticBarrierName && equality.Semantic.DeepEqual(w.Rules, rules("configmaps")) && isNarrowed(own, w.NamespaceSelector)
}

func tooWide(rule admissionregistrationv1.RuleWithOperations) bool {
	sidecarSets := slices.Equal(rule.APIGroups, []string{appsv1beta1.GroupVersion.Group}) && slices.Equal(rule.Resources, []string{"sidecarsets"})
	pods := slices.Equal(rule.APIGroups, []string{""}) && slices.Equal(rule.Resources, []string{"pods"}) &&
		slices.Equal(rule.Operations, []admissionregistrationv1.OperationType{admissionregistrationv1.Create})
	return !sidecarSets && !pods
}
