package entryplan_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/entryplan"
)

func rule(group, resource string, operations ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: operations, Rule: admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}},
	}}
}

func TestRepairsRemovesRulesForOtherResources(t *testing.T) {
	const ours, barrier = "mutate.sidecarsets.sidecarset.io", "static.barrier.sidecarset.io"
	configMaps := rule("", "configmaps", "CREATE")
	configMaps[0].APIVersions, configMaps[0].Scope = []string{"v1"}, new(admissionregistrationv1.NamespacedScope)
	in := func(namespace string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": namespace}}
	}
	tests := map[string]struct {
		webhooks []admissionregistrationv1.MutatingWebhook
		want     []string // of the repairs: the index, and whether it goes
	}{
		"as applied":                   {[]admissionregistrationv1.MutatingWebhook{{Name: ours, Rules: rule("apps.kruise.io", "sidecarsets", "CREATE", "UPDATE")}}, nil},
		"one version only":             {[]admissionregistrationv1.MutatingWebhook{{Name: ours, Rules: rule("apps.kruise.io", "sidecarsets", "CREATE")}}, nil},
		"static":                       {[]admissionregistrationv1.MutatingWebhook{{Name: "x", Rules: rule("", "pods", "CREATE")}}, nil},
		"the barrier of static mode":   {[]admissionregistrationv1.MutatingWebhook{{Name: barrier, Rules: configMaps, NamespaceSelector: in("sidecarset-system")}}, nil},
		"a barrier elsewhere":          {[]admissionregistrationv1.MutatingWebhook{{Name: barrier, Rules: configMaps, NamespaceSelector: in("default")}}, []string{"0 gone"}},
		"a barrier everywhere":         {[]admissionregistrationv1.MutatingWebhook{{Name: barrier, Rules: configMaps}}, []string{"0 gone"}},
		"ConfigMaps by another name":   {[]admissionregistrationv1.MutatingWebhook{{Name: "x", Rules: configMaps, NamespaceSelector: in("sidecarset-system")}}, []string{"0 gone"}},
		"without rules":                {[]admissionregistrationv1.MutatingWebhook{{Name: "x"}}, nil},
		"ours, for Secrets":            {[]admissionregistrationv1.MutatingWebhook{{Name: ours, Rules: rule("", "secrets", "CREATE")}}, []string{"0 narrowed"}},
		"ours, for every group":        {[]admissionregistrationv1.MutatingWebhook{{Name: ours, Rules: rule("*", "sidecarsets", "CREATE")}}, []string{"0 narrowed"}},
		"ours, for every resource":     {[]admissionregistrationv1.MutatingWebhook{{Name: ours, Rules: rule("apps.kruise.io", "*", "CREATE")}}, []string{"0 narrowed"}},
		"for Pods that exist":          {[]admissionregistrationv1.MutatingWebhook{{Name: "inject.pods.sidecarset.io", Rules: rule("", "pods", "CREATE", "UPDATE")}}, []string{"0 narrowed"}},
		"for a subresource of Pods":    {[]admissionregistrationv1.MutatingWebhook{{Name: "x", Rules: rule("", "pods/exec", "CONNECT")}}, []string{"0 gone"}},
		"another one, the last first":  {[]admissionregistrationv1.MutatingWebhook{{Name: "x", Rules: rule("", "secrets")}, {Name: ours, Rules: rule("", "secrets")}, {Name: "y", Rules: rule("*", "*")}}, []string{"2 gone", "1 narrowed", "0 gone"}},
		"a rule beside one that is ok": {[]admissionregistrationv1.MutatingWebhook{{Name: ours, Rules: append(rule("apps.kruise.io", "sidecarsets", "CREATE"), rule("", "secrets")...)}}, []string{"0 narrowed"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, r := range entryplan.Repairs(tc.webhooks, "sidecarset-system") {
				what := " gone"
				if len(r.Rules) > 0 {
					what = " narrowed"
					if again := entryplan.Repairs([]admissionregistrationv1.MutatingWebhook{{Name: "x", Rules: r.Rules}}, "sidecarset-system"); len(again) > 0 {
						t.Errorf("what it is repaired to is repaired again")
					}
				}
				got = append(got, string(rune('0'+r.Index))+what)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("repairs (-want +got):\n%s", diff)
			}
		})
	}
}
