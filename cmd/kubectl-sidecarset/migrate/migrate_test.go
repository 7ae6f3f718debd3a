package migrate_test

import (
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/migrate"
)

// expect fails the test unless the notes are these: the object, and words of the text.
func expect(t *testing.T, got []migrate.Note, want ...[2]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d notes, want %d: %+v", len(got), len(want), got)
	}
	for i, n := range got {
		if n.Object != want[i][0] || !strings.Contains(n.Text, want[i][1]) {
			t.Errorf("%+v, want %q", n, want[i])
		}
	}
}

func partsOf(t *testing.T, manifests ...string) *clusterview.Parts {
	t.Helper()
	parts := &clusterview.Parts{Excluded: []string{"kube-system"}}
	for _, text := range manifests {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(text), &object); err != nil {
			t.Fatal(err)
		}
		parts.SidecarSets = append(parts.SidecarSets, object)
	}
	return parts
}

func TestSidecarSetsOfOpenKruise(t *testing.T) {
	parts := partsOf(t, `
apiVersion: apps.kruise.io/v1alpha1
kind: SidecarSet
metadata: {name: log}
spec:
  selector: {matchLabels: {app: web}}
  injectionStrategy: {revision: {revisionName: log-1}}
  containers:
  - name: agent
    image: example.com/agent:v1
    upgradeStrategy: {upgradeType: HotUpgrade}
    env: [{name: KRUISE_TERMINATE_SIDECAR_WHEN_JOB_EXIT, value: "true"}]
`, `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: broken}
spec: {selector: {matchLabels: {app: web}}, containers: agent}
`, `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: fine}
spec: {selector: {matchLabels: {app: web}}, containers: [{name: agent, image: "example.com/agent:v1"}]}
`)
	notes := migrate.SidecarSets(parts, "")
	expect(t, notes, [2]string{"SidecarSet broken", "must be a list"}, [2]string{"SidecarSet log", "use a native sidecar"},
		[2]string{"SidecarSet log", "hotUpgradeEmptyImage: Required"}, [2]string{"SidecarSet log", "--revision-namespace=kruise-system"})
	for i, refused := range []bool{true, false, true, false} {
		if notes[i].Refused != refused {
			t.Errorf("%+v: refused is not %v", notes[i], refused)
		}
	}
}

func TestNamespacesThatOpenKruiseLeavesOut(t *testing.T) {
	const set = `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: NAME}
spec: {selector: {matchLabels: {app: web}}, containers: [{name: agent, image: "example.com/agent:v1"}], namespaceSelector: {matchLabels: {team: NAME}}}
`
	parts := partsOf(t, strings.ReplaceAll(set, "NAME", "a"), strings.ReplaceAll(set, "NAME", "b"))
	controlPlane := labels.Set{"control-plane": "x", "team": "a"}
	parts.Namespaces = map[string]labels.Set{"shop": controlPlane, "other": {"team": "a"}, "kube-system": controlPlane}
	expect(t, migrate.Namespaces(parts), [2]string{"Namespace shop", "(a)"})
}

func TestFeatureGates(t *testing.T) {
	manager := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "kruise"}}
	manager.Spec.Template.Spec.Containers = []corev1.Container{{Args: []string{"--v=4", "--feature-gates=SidecarTerminator=true,Other=true"}}}
	expect(t, migrate.Gates([]appsv1.Deployment{manager}), [2]string{"Deployment kruise", "SidecarTerminator=true has no counterpart"})
}

func TestWebhooksThatAreCalledBetween(t *testing.T) {
	of := func(name, path, group, resource string) admissionregistrationv1.MutatingWebhookConfiguration {
		return admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionregistrationv1.MutatingWebhook{{
			ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Path: &path}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, Resources: []string{resource}},
			}},
		}}}
	}
	kruise := of("kruise", "/mutate-pod", "", "pods")
	kruise.Webhooks = append(kruise.Webhooks, of("", "/", "apps.kruise.io", "sidecarsets").Webhooks...)
	others := []admissionregistrationv1.MutatingWebhookConfiguration{of("istio", "/", "", "pods"), of("linkerd", "/", "", "pods"), of("other", "/", "", "services"), of("vault", "/", "", "pods")}
	expect(t, migrate.Between(slices.Insert(slices.Clone(others), 1, kruise)), [2]string{"MutatingWebhookConfiguration linkerd", "sees Pods without the sidecars"})
	expect(t, migrate.Between(others))
}
