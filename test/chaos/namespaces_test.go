package chaos

import (
	"encoding/json"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/test/testkit"
)

// The test labels a Namespace and creates a Pod in it at once, through the same
// connection. If the API server does not know the label itself yet, it calls no webhook,
// and the Pod is missed. If it calls a webhook, the Pod is not missed, however late replicas
// hear of the label. The API server's own metric shows for each Pod whether it called.
func TestNoPodBehindALabelIsMissedIfTheWebhookIsCalled(t *testing.T) {
	const name, key = "labelled", "chaos/labelled"
	proxy, args := startProxy(t)
	proxy.lag = lag{"namespaces", 300 * time.Millisecond}
	f := startReplicas(t, 2, args...)
	// There are enough Namespaces for replicas to hear of a removed label before the test sets
	// it again.
	var namespaces []string
	for range testkit.Scaled(20, 50) {
		namespaces = append(namespaces, newNamespace(t))
	}
	set := testkit.NewSet(name, "", testkit.AppLabels(name))
	set.Object["spec"].(map[string]any)["namespaceSelector"] = map[string]any{"matchLabels": map[string]any{key: "yes"}}
	createSets(t, []*unstructured.Unstructured{set})
	testkit.AwaitReady(t, api, name)

	webhook := webhookFor(t, key)
	uncalled, missed, refused, count := 0, 0, 0, testkit.Scaled(40, 1000)
	before := callsOf(t, webhook)
	for i := range count {
		namespace := namespaces[i%len(namespaces)]
		label(t, namespace, key, "yes")
		pod, err := clients[0].CoreV1().Pods(namespace).Create(t.Context(), testkit.NewPod(testkit.AppLabels(name)), metav1.CreateOptions{})
		if err != nil { // on a busy machine, a leader may lose its Lease and end
			t.Logf("Pod %d: %v", i, err)
			refused++
			f.revive(t)
		}
		after := callsOf(t, webhook)
		switch called := after > before; {
		case err != nil:
		case !called:
			uncalled++
		case !testkit.Injected(pod, []string{name}):
			missed++
			t.Errorf("Pod %d in Namespace %s was asked about, and misses its sidecar", i, namespace)
		}
		before = after
		label(t, namespace, key, "")
	}
	testkit.Report(t, "Pods=%d missed-though-called=%d not-called=%d refused=%d", count, missed, uncalled, refused)
	if refused > count/10 || uncalled > count/2 {
		t.Errorf("of %d Pods %d were refused, and for %d API servers did not call: little was tested", count, refused, uncalled)
	}
}

// label sets a label of a Namespace, or takes it away if value is empty.
func label(t *testing.T, namespace, key, value string) {
	t.Helper()
	var to any
	if value != "" {
		to = value
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{key: to}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clients[0].CoreV1().Namespaces().Patch(t.Context(), namespace, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// webhookFor is the name of the webhook for Namespaces with a label.
func webhookFor(t *testing.T, key string) string {
	t.Helper()
	configurations, err := clients[0].AdmissionregistrationV1().MutatingWebhookConfigurations().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, configuration := range configurations.Items {
		for _, webhook := range configuration.Webhooks {
			if selector := webhook.NamespaceSelector; selector != nil && selector.MatchLabels[key] != "" {
				return webhook.Name
			}
		}
	}
	t.Fatalf("no webhook for Namespaces with the label %s", key)
	return ""
}

// callsOf is how often the first API server has called such a webhook.
func callsOf(t *testing.T, webhook string) float64 {
	t.Helper()
	return metric(t, metricsOf(t, 0), "apiserver_admission_webhook_request_total", `name="`+webhook+`"`)
}

// metricsOf returns the metrics of the i-th API server.
func metricsOf(t *testing.T, i int) string {
	t.Helper()
	text, err := clients[i].CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
