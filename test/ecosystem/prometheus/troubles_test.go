package prometheus

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// trouble is a state of the operator or of its cluster that an alert is about.
type trouble struct {
	alert  string
	metric string   // rises in trouble; a gauge goes back afterwards, a counter stays
	parts  []string // of the metric's samples
	falls  bool     // the metric falls in trouble, instead
	make   func(t *testing.T)
	cure   func(t *testing.T) // nil for what happens once: the metric is a counter
	// edit changes a sample of an operator without this trouble, in place of make: for what the
	// stand cannot bring about quickly.
	edit func(series string, value float64) float64
}

// troubles are in the order in which they are brought about.
func troubles(t *testing.T, namespace string) []trouble {
	var saved *admissionregistrationv1.ValidatingWebhookConfiguration
	var absent *corev1.Pod
	openKruise := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "kruise-mutating-webhook-configuration"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{
			webhookOf(namespace, "mpod.kb.io", "/mutate-pod"), webhookOf(namespace, "msidecarset.kb.io", "/mutate-apps-kruise-io-sidecarset"),
		},
	}
	large := pod(namespace, "large", "")
	for i := range 45 {
		large.Labels[fmt.Sprintf("label-%02d-%s", i, strings.Repeat("k", 50))] = strings.Repeat("v", 60)
	}
	blocked := testkit.NewPatientSet("blocked", namespace)
	blocked.Object["spec"].(map[string]any)["updateStrategy"] = map[string]any{"type": "RollingUpdate"}
	return []trouble{
		{
			alert: "SidecarSetAdmissionErrors", metric: "sidecarset_pod_admissions_total", parts: []string{`result="invalid"`},
			make: func(t *testing.T) { post(t, replicas[0], "/pods", "no review") },
		},
		{
			alert: "SidecarSetPodsRefused", metric: "sidecarset_injections_total", parts: []string{`result="denied"`},
			make: func(t *testing.T) {
				p := pod(namespace, "taken", "good")
				p.Spec.Containers[0].Name = "good" // the sidecar's name
				if err := api.Create(t.Context(), p); err == nil || !strings.Contains(err.Error(), "good") {
					t.Fatalf("a Pod with the sidecar's name is answered with %v", err)
				}
			},
		},
		{
			alert: "SidecarSetNotReady", metric: "sidecarset_ready", falls: true,
			make: func(t *testing.T) { endpoints(t, operator.RemoveEndpoint) },
			cure: func(t *testing.T) { endpoints(t, operator.AddEndpoint) },
		},
		{
			alert: "SidecarSetUninjectedPods", metric: "sidecarset_uninjected_pods",
			make: func(t *testing.T) {
				create(t, pod(namespace, "older", "late"))
				create(t, testkit.NewPatientSet("late", namespace))
				testkit.AwaitReady(t, api, "late")
			},
			cure: func(t *testing.T) { remove(t, pod(namespace, "older", "late")) },
		},
		{
			alert: "SidecarSetDegraded", metric: "sidecarset_degraded",
			make: func(t *testing.T) {
				create(t, blocked)
				testkit.AwaitReady(t, api, "blocked")
				create(t, pod(namespace, "fixed", "blocked"))
				edit(t, "blocked", func(container map[string]any) { container["env"] = []any{} })
			},
			cure: func(t *testing.T) { remove(t, pod(namespace, "fixed", "blocked")) },
		},
		{
			alert: "SidecarSetDegraded", metric: "sidecarset_pods_not_running",
			make: func(t *testing.T) {
				elsewhere := testkit.Namespace(t, api, nil)
				absent = pod(elsewhere, "absent", "absent")
				create(t, testkit.NewPatientSet("absent", elsewhere))
				testkit.AwaitReady(t, api, "absent")
				create(t, absent)
				kubelet := &testkit.Kubelet{Client: api, Namespace: elsewhere, Missing: func(image string) bool { return image != appImage }}
				kubelet.Start(t)
			},
			cure: func(t *testing.T) { remove(t, absent) },
		},
		{
			alert: "SidecarSetUncountedPods", metric: "sidecarset_uncounted_pods",
			make: func(t *testing.T) { create(t, large) },
			cure: func(t *testing.T) { remove(t, large) },
		},
		{
			alert: "SidecarSetAnotherInjector", metric: "sidecarset_other_injectors",
			make: func(t *testing.T) { create(t, openKruise) },
			cure: func(t *testing.T) { remove(t, openKruise) },
		},
		{
			alert: "SidecarSetEntriesEdited", metric: "sidecarset_pod_webhook_foreign_total",
			make: func(t *testing.T) {
				await.Eventually(t, "an entry of another program", func(ctx context.Context) error {
					var slots admissionregistrationv1.MutatingWebhookConfigurationList
					if err := api.List(ctx, &slots, client.MatchingLabelsSelector{Selector: entry.Labelled()}); err != nil {
						return err
					}
					slot := &slots.Items[rand.IntN(len(slots.Items))]
					slot.Webhooks = append(slot.Webhooks, webhookOf(namespace, "foreign.pods.example.com", "/pods"))
					return api.Update(ctx, slot)
				})
			},
		},
		{
			alert: "SidecarSetManifestsMissing", metric: "sidecarset_ca_bundle_objects_missing",
			make: func(t *testing.T) {
				saved = &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: deploy.ValidatingConfiguration}}
				if err := api.Get(t.Context(), client.ObjectKeyFromObject(saved), saved); err != nil {
					t.Fatal(err)
				}
				remove(t, saved)
			},
			cure: func(t *testing.T) {
				saved.ObjectMeta = metav1.ObjectMeta{Name: saved.Name, Labels: saved.Labels, Annotations: saved.Annotations}
				create(t, saved)
			},
		},
		{
			alert: "SidecarSetCAReplaced", metric: "sidecarset_ca_writes_total", parts: []string{`change="replaced"`},
			make: func(t *testing.T) {
				secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: deploy.Namespace, Name: deploy.CertSecret}}
				if err := api.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
					t.Fatal(err)
				}
				for key := range secret.Data {
					secret.Data[key] = []byte("damaged")
				}
				if err := api.Update(t.Context(), secret); err != nil {
					t.Fatal(err)
				}
			},
		},
		{
			alert: "SidecarSetRequestsTurnedAway",
			edit: func(series string, value float64) float64 {
				if strings.HasPrefix(series, "sidecarset_webhook_refused_requests_total") && strings.Contains(series, `reason="busy"`) {
					return value + 60
				}
				return value
			},
		},
		{
			alert: "SidecarSetCertificatePending",
			edit: func(series string, value float64) float64 {
				if strings.HasPrefix(series, "sidecarset_certificate_pending_seconds") {
					return 4000
				}
				return value
			},
		},
	}
}

const appImage = "example.com/app:v1"

func pod(namespace, name, app string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: testkit.AppLabels(app)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: appImage}}},
	}
}

// webhookOf is a webhook for Pods of the namespace, which calls a Service there. No server
// answers, and API servers ignore that.
func webhookOf(namespace, name, path string) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{
		Name: name, FailurePolicy: new(admissionregistrationv1.Ignore), SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
		ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: namespace, Name: "sidecarset-webhook", Path: &path}},
		Rules: []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "nowhere"}},
	}
}

func create(t *testing.T, object client.Object) {
	t.Helper()
	await.Eventually(t, "creating "+object.GetName(), func(ctx context.Context) error { return api.Create(ctx, object) })
}

func remove(t *testing.T, object client.Object) {
	t.Helper()
	if err := api.Delete(t.Context(), object, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
}

// edit changes the first container of a SidecarSet.
func edit(t *testing.T, name string, change func(container map[string]any)) {
	t.Helper()
	await.Eventually(t, "changing "+name, func(ctx context.Context) error {
		set := testkit.NewPatientSet(name, "")
		if err := api.Get(ctx, client.ObjectKeyFromObject(set), set); err != nil {
			return err
		}
		containers, _, _ := unstructured.NestedSlice(set.Object, "spec", "containers")
		change(containers[0].(map[string]any))
		if err := unstructured.SetNestedSlice(set.Object, containers, "spec", "containers"); err != nil {
			return err
		}
		return api.Update(ctx, set)
	})
}

func endpoints(t *testing.T, write func(context.Context, *deploy.Replica) error) {
	t.Helper()
	for _, replica := range replicas {
		if err := write(t.Context(), replica); err != nil {
			t.Fatal(err)
		}
	}
}

// post sends a body to a replica, as any client can.
func post(t *testing.T, replica *deploy.Replica, path, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+deploy.ServerName+path, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := replica.Trusting(t, "").Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
}
