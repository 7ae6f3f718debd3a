package doctor

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
)

func TestCRD(t *testing.T) {
	text, err := os.ReadFile("../../../config/crd/bases/apps.kruise.io_sidecarsets.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type crd = apiextensionsv1.CustomResourceDefinition
	tests := map[string]struct {
		change func(*crd)
		want   []string
	}{
		"as the manifests have it": {func(*crd) {}, nil},
		"not installed":            {func(c *crd) { *c = crd{} }, []string{"error|is not installed"}},
		"not established": {func(c *crd) {
			c.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: "Established", Status: "False", Message: "names are taken"}}
		}, []string{"error|names are taken"}},
		"OpenKruise's versions": {func(c *crd) {
			c.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1alpha1", Served: true, Storage: true}}
		}, []string{"error|stores v1alpha1", "error|status.conditions", "error|does not serve v1beta1"}},
		"objects of the old version":   {func(c *crd) { c.Status.StoredVersions = []string{"v1alpha1", "v1beta1"} }, []string{"warning|may be stored as v1alpha1"}},
		"no conversion":                {func(c *crd) { c.Spec.Conversion.Webhook = nil }, []string{"error|no conversion webhook"}},
		"another program's conversion": {func(c *crd) { c.Spec.Conversion.Webhook.ClientConfig.Service.Namespace = "kruise-system" }, []string{"error|kruise-system/sidecarset-webhook"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := factsOf()
			if err := yaml.Unmarshal(text, &f.crd); err != nil {
				t.Fatal(err)
			}
			f.crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Webhook: &apiextensionsv1.WebhookConversion{ClientConfig: &apiextensionsv1.WebhookClientConfig{
				Service: &apiextensionsv1.ServiceReference{Namespace: operatorNamespace, Name: "sidecarset-webhook"},
			}}}
			tc.change(&f.crd)
			expect(t, func(r *Result) { f.lookAtCRD(t.Context(), r) }, tc.want...)
		})
	}
}

func deployment(replicas, ready int32, args ...string) appsv1.Deployment {
	d := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: "sidecarset-operator"}}
	app := map[string]string{"app": "operator"}
	d.Spec.Replicas, d.Spec.Selector, d.Spec.Template.Labels = &replicas, &metav1.LabelSelector{MatchLabels: app}, app
	d.Spec.Template.Spec = corev1.PodSpec{ServiceAccountName: "sidecarset-operator", Containers: []corev1.Container{{Name: "operator", Args: args}}}
	d.Status.ReadyReplicas = ready
	return d
}

func TestReplicas(t *testing.T) {
	endpoint := func(ready bool) discoveryv1.EndpointSliceList {
		return discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: "sidecarset-webhook"}},
			Endpoints:  []discoveryv1.Endpoint{{Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		}}}
	}
	lease := func(renewed time.Duration) coordinationv1.Lease {
		return coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: new("a"), LeaseDurationSeconds: new(int32(40)), RenewTime: new(metav1.NewMicroTime(time.Now().Add(-renewed)))}}
	}
	tests := map[string]struct {
		deployment appsv1.Deployment
		change     func(*facts)
		want       []string
	}{
		"two":                     {deployment(2, 2), func(*facts) {}, nil},
		"one of two":              {deployment(2, 1), func(*facts) {}, []string{"warning|1 of 2"}},
		"none":                    {deployment(2, 0), func(*facts) {}, []string{"error|no Pod is ready"}},
		"scaled to 0":             {deployment(0, 0), func(*facts) {}, []string{"error|scaled to 0"}},
		"none answers":            {deployment(2, 2), func(f *facts) { f.endpoints = endpoint(false) }, []string{"error|no replica answers"}},
		"none leads":              {deployment(2, 2), func(f *facts) { f.lease = lease(time.Hour) }, []string{"error|no process leads"}},
		"none has led":            {deployment(2, 2), func(f *facts) { f.lease = coordinationv1.Lease{} }, []string{"error|no process leads"}},
		"clocks that differ some": {deployment(2, 2), func(f *facts) { f.lease = lease(time.Minute) }, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := factsOf()
			f.deployments.Items, f.endpoints, f.lease = []appsv1.Deployment{tc.deployment}, endpoint(true), lease(0)
			tc.change(f)
			expect(t, func(r *Result) { f.lookAtReplicas(t.Context(), r) }, tc.want...)
		})
	}
}

func TestAnImmutableSecretIsAnError(t *testing.T) {
	for immutable, want := range map[bool][]string{false: nil, true: {"error|immutable"}} {
		f := factsOf()
		f.Client = fake.NewClientBuilder().WithObjects(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: operatorNamespace, Name: "sidecarset-webhook-certs"}, Immutable: &immutable,
		}).Build()
		expect(t, func(r *Result) { f.lookAtSecret(t.Context(), r) }, want...)
	}
}

func looked(set *appsv1beta1.SidecarSet) func(*Result) {
	return func(r *Result) { lookAtSidecarSet(set, r) }
}

func TestSidecarSetStatus(t *testing.T) {
	of := func(conditions ...metav1.Condition) *appsv1beta1.SidecarSet {
		return &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: "log", Generation: 2}, Status: appsv1beta1.SidecarSetStatus{ObservedGeneration: 2, Conditions: conditions}}
	}
	ready := metav1.Condition{Type: appsv1beta1.ConditionReady, Status: metav1.ConditionTrue, Message: inForce}
	expect(t, looked(of(ready)))
	expect(t, looked(of())) // paused
	narrowed := ready
	narrowed.Message += " Pod Security refuses Pods in namespace a."
	expect(t, looked(of(narrowed)), "warning SidecarSet log: Pod Security refuses")
	expect(t, looked(of(metav1.Condition{Type: appsv1beta1.ConditionReady, Status: metav1.ConditionFalse, Reason: appsv1beta1.ReasonNoReplica, Message: "No replica."})), "error|NoReplica|No replica.")
	degraded := func(reason string) metav1.Condition {
		return metav1.Condition{Type: appsv1beta1.ConditionDegraded, Status: metav1.ConditionTrue, Reason: reason, Message: "why"}
	}
	expect(t, looked(of(ready, degraded(appsv1beta1.ReasonStalled))), "error|Stalled|status log")
	expect(t, looked(of(ready, degraded(appsv1beta1.ReasonBlocked))), "warning|PodsBlocked|status log")
}

func TestASidecarSetThatCannotBeReadIsAnError(t *testing.T) {
	f := factsOf()
	for name, paused := range map[string]any{"fine": true, "odd": "yes"} {
		f.parts.SidecarSets = append(f.parts.SidecarSets, map[string]any{
			"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"injectionStrategy": map[string]any{"paused": paused}},
		})
	}
	expect(t, func(r *Result) { f.lookAtSidecarSets(t.Context(), r) }, "error SidecarSet odd|spec.injectionStrategy.paused|correct the field")
}

func TestPodsThatAreRefused(t *testing.T) {
	security := errors.New(`pods "p" is forbidden: violates PodSecurity "restricted:latest": privileged`)
	quota := errors.New(`pods "p" is forbidden: exceeded quota: q, requested: limits.cpu=500m`)
	calling := errors.New(`Internal error occurred: failed calling webhook "0123.pods.sidecarset.io": x509`)
	tests := map[string]struct {
		refused, alone error
		want           []string
		skipped        string
	}{
		"because of the sidecars":   {security, nil, []string{"error SidecarSet log in namespace shop|is refused|violates PodSecurity"}, ""},
		"a quota, whatever the Pod": {quota, quota, nil, "refused there, too: pods \"p\""},
		"the operator is down":      {calling, nil, []string{"error|cannot call the operator"}, ""},
		"and another program, too":  {calling, quota, []string{"error|cannot call the operator"}, ""},
	}
	p := place{&inject.Compiled{Set: &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: "log"}}}, "shop"}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var err error
			expect(t, func(r *Result) { err = p.judge(tc.refused, tc.alone, r) }, tc.want...)
			if (err == nil) != (tc.skipped == "") || err != nil && !strings.Contains(err.Error(), tc.skipped) {
				t.Errorf("skipped: %v, want %q", err, tc.skipped)
			}
		})
	}
}

func TestFlagsOfTheOperator(t *testing.T) {
	args := []string{"--role=all", "-excluded-namespaces", "a,b", "--leader-elect", "--cert-mode=files"}
	for name, want := range map[string]string{"role": "all", "excluded-namespaces": "a,b", "cert-mode": "files", "webhook-service": "otherwise"} {
		if got := valueOf(args, name, "otherwise"); got != want {
			t.Errorf("--%s is %q, want %q", name, got, want)
		}
	}
}
