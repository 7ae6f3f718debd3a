package doctor

import (
	"slices"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/internal/hub"
)

const operatorNamespace = "sidecarset-system"

type configurations = map[string]*admissionregistrationv1.MutatingWebhookConfiguration

// factsOf are those of an installation with these configurations and SidecarSets.
func factsOf(t *testing.T, all configurations, sets ...*hub.SidecarSet) *facts {
	t.Helper()
	f := &facts{installation: newInstallation(operatorNamespace, nil, nil)}
	for _, c := range all {
		f.mutating.Items = append(f.mutating.Items, *c)
	}
	for _, set := range sets {
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(set.Set)
		if err != nil {
			t.Fatal(err)
		}
		f.parts.SidecarSets = append(f.parts.SidecarSets, object)
	}
	return f
}

func setNamed(name string) *hub.SidecarSet {
	set := &appsv1beta1.SidecarSet{TypeMeta: metav1.TypeMeta{APIVersion: appsv1beta1.GroupVersion.String(), Kind: appsv1beta1.Kind.Kind}}
	set.Name, set.UID, set.Generation = name, types.UID("uid-of-"+name), 1
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	return &hub.SidecarSet{Set: set}
}

// written are the slots as the leader writes them for the SidecarSets, and the one slot with the
// entry of the first.
func written(t *testing.T, sets ...*hub.SidecarSet) (configurations, *admissionregistrationv1.MutatingWebhookConfiguration) {
	t.Helper()
	var needed []entry.Entry
	for _, set := range sets {
		e, err := entry.Of(set.Set)
		if err != nil {
			t.Fatal(err)
		}
		needed = append(needed, e)
	}
	settings := &entry.Settings{
		Namespace: operatorNamespace, Ownerless: true, ExcludedNamespaces: []string{"kube-system", operatorNamespace}, Bundle: []byte("bundle"),
		Service: admissionregistrationv1.ServiceReference{Namespace: operatorNamespace, Name: "sidecarset-webhook"},
	}
	all := configurations{}
	for i, wanted := range entry.Combine(needed) {
		object := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: entry.ConfigurationName(i), ResourceVersion: "5"}}
		slot, err := entry.Parse(object)
		if err != nil {
			t.Fatal(err)
		}
		if plan := slot.Reconcile(wanted, nil, nil, false, settings); plan.Next != nil {
			object = plan.Next
			object.ResourceVersion = "6"
		}
		all[object.Name] = object
	}
	if len(needed) == 0 {
		return all, nil
	}
	return all, all[entry.ConfigurationName(needed[0].Slot())]
}

func podEntry(c *admissionregistrationv1.MutatingWebhookConfiguration) *admissionregistrationv1.MutatingWebhook {
	return &c.Webhooks[slices.IndexFunc(c.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Rules[0].Resources[0] == "pods" })]
}

func TestEntries(t *testing.T) {
	notIn := func(key string, values ...string) metav1.LabelSelectorRequirement {
		return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpNotIn, Values: values}
	}
	edited := func(c *admissionregistrationv1.MutatingWebhookConfiguration, manager string) {
		c.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: manager, Time: new(metav1.Unix(2, 0)), FieldsV1: metav1.NewFieldsV1(`{"f:webhooks":{}}`)}}
	}
	tests := map[string]struct {
		edit func(all configurations, of *admissionregistrationv1.MutatingWebhookConfiguration)
		want []string
	}{
		"as the leader writes them": {func(configurations, *admissionregistrationv1.MutatingWebhookConfiguration) {}, nil},
		"a slot is missing": {func(all configurations, of *admissionregistrationv1.MutatingWebhookConfiguration) {
			delete(all, of.Name)
		},
			[]string{"error MutatingWebhookConfiguration|is missing|log|kubectl apply --server-side"}},
		"an entry is missing": {func(_ configurations, of *admissionregistrationv1.MutatingWebhookConfiguration) {
			of.Webhooks = slices.DeleteFunc(of.Webhooks, func(w admissionregistrationv1.MutatingWebhook) bool { return w.Name == podEntry(of).Name })
		}, []string{"error|the entry of SidecarSets log is missing"}},
		"a policy is edited": {func(_ configurations, of *admissionregistrationv1.MutatingWebhookConfiguration) {
			podEntry(of).FailurePolicy = new(admissionregistrationv1.Ignore)
			edited(of, "weakener")
		}, []string{"error|is not what SidecarSets log need|by field manager weakener|configure that program"}},
		"GitOps replaces it": {func(_ configurations, of *admissionregistrationv1.MutatingWebhookConfiguration) {
			of.Webhooks = nil
			edited(of, "argocd-controller")
		}, []string{"error|is missing|Replace=true"}},
		"a webhook is added": {func(_ configurations, of *admissionregistrationv1.MutatingWebhookConfiguration) {
			of.Webhooks = append(of.Webhooks, admissionregistrationv1.MutatingWebhook{Name: "secrets.example.com"})
		}, []string{"error|webhooks of another program: secrets.example.com"}},
		"some namespaces are left out": {func(_ configurations, of *admissionregistrationv1.MutatingWebhookConfiguration) {
			s := podEntry(of).NamespaceSelector
			s.MatchExpressions = append(s.MatchExpressions, notIn("control-plane", "true"))
		}, []string{"warning|leaves out of the entry of SidecarSets log: namespaces by control-plane notin (true)"}},
		"a newer format": {func(_ configurations, of *admissionregistrationv1.MutatingWebhookConfiguration) {
			of.Annotations[entry.AnnotationFormat] = "99"
		}, []string{"error|newer version"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			set := setNamed("log")
			all, of := written(t, set)
			tc.edit(all, of)
			f := factsOf(t, all, set)
			expect(t, func(r *Result) { f.lookAtEntries(t.Context(), r) }, tc.want...)
		})
	}
}

func TestWebhooksForSidecarSets(t *testing.T) {
	f := factsOf(t, nil)
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

func TestStaticEntry(t *testing.T) {
	written, _ := written(t, setNamed("log"))
	look := func(all configurations) func(*Result) {
		f := factsOf(t, all)
		f.args = []string{"--pod-webhook=static"}
		return func(r *Result) { f.lookAtEntries(t.Context(), r) }
	}
	expect(t, look(nil), "error|has no entry for Pods")
	expect(t, look(written))
}

func TestInjectors(t *testing.T) {
	all, _ := written(t, setNamed("log"))
	f := factsOf(t, all)
	expect(t, func(r *Result) { f.lookAtInjectors(t.Context(), r) })
	f.namespace = "elsewhere"
	expect(t, func(r *Result) { f.lookAtInjectors(t.Context(), r) }, "error|Another SidecarSet operator|uninstall one")
	rule := func(group, resource string) []admissionregistrationv1.RuleWithOperations {
		return []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, Resources: []string{resource}},
		}}
	}
	kruise := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "kruise"}, Webhooks: []admissionregistrationv1.MutatingWebhook{
		{Name: "mpod.kb.io", Rules: rule("", "pods"), ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "kruise-system", Name: "kruise", Path: new("/mutate-pod")}}},
		{Name: "set.kb.io", Rules: rule("apps.kruise.io", "sidecarsets")},
	}}
	f = factsOf(t, configurations{"kruise": kruise})
	expect(t, func(r *Result) { f.lookAtInjectors(t.Context(), r) }, "error|OpenKruise injects as well|migrate")
}
