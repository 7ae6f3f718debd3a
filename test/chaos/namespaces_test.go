package chaos

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/test/testkit"
)

// The test labels a Namespace and creates a Pod in it at once, through the same
// connection. If the API server does not know the label itself yet, it calls no webhook,
// and the Pod is missed. If it calls a webhook, the Pod is not missed, however late replicas
// hear of the label. This holds for one SidecarSet alone, and beside another SidecarSet that
// selects the Pod anyway. The API server's own metric shows for each Pod whether it called.
func TestNoPodBehindALabelIsMissedIfTheWebhookIsCalled(t *testing.T) {
	for _, by := range testkit.Scaled([]time.Duration{300 * time.Millisecond}, []time.Duration{0, 300 * time.Millisecond}) {
		t.Run(fmt.Sprintf("replicas hear of it %s late", by), func(t *testing.T) {
			proxy, args := startProxy(t)
			proxy.lag = lag{"namespaces", by}
			b := newBehindLabels(t, startReplicas(t, 2, append(args, steadyLeases...)...))
			t.Run("one SidecarSet", func(t *testing.T) { b.run(t, "label-one") })
			t.Run("two SidecarSets", func(t *testing.T) { b.run(t, "label-two", "label-all") })
		})
	}
}

// behindLabels creates Pods in Namespaces that get their label just before.
type behindLabels struct {
	fleet      *fleet
	namespaces []string
}

func newBehindLabels(t *testing.T, f *fleet) *behindLabels {
	b := &behindLabels{fleet: f}
	// There are enough Namespaces for replicas to hear of a removed label before the test sets
	// it again.
	for range testkit.Scaled(20, 50) {
		b.namespaces = append(b.namespaces, newNamespace(t))
	}
	return b
}

// run applies a SidecarSet for Namespaces with a label, and maybe one for all of
// these Namespaces, which selects the same Pods.
func (b *behindLabels) run(t *testing.T, labelled string, everywhere ...string) {
	key := "chaos/" + labelled
	pods := testkit.AppLabels(labelled)
	set := testkit.NewSet(labelled, "", pods)
	set.Object["spec"].(map[string]any)["namespaceSelector"] = map[string]any{"matchLabels": map[string]any{key: "yes"}}
	all := []*unstructured.Unstructured{set}
	for _, name := range everywhere {
		other := testkit.NewSet(name, "", pods)
		other.Object["spec"].(map[string]any)["namespaceSelector"] = map[string]any{"matchExpressions": []any{
			map[string]any{"key": corev1.LabelMetadataName, "operator": "In", "values": toAny(b.namespaces)},
		}}
		all = append(all, other)
	}
	b.fleet.revive(t)
	createSets(t, all)
	testkit.AwaitReady(t, api, append([]string{labelled}, everywhere...)...)

	entry := entryFor(t, key)
	var uncalled, missed, forOthers, refused int
	var took []time.Duration
	count := testkit.Scaled(40, 1000)
	before := callsOf(t, entry)
	for i := range count {
		namespace := b.namespaces[i%len(b.namespaces)]
		label(t, namespace, key, "yes")
		begin := time.Now()
		pod, err := clients[0].CoreV1().Pods(namespace).Create(t.Context(), testkit.NewPod(pods), metav1.CreateOptions{})
		if err != nil { // on a busy machine, a leader may lose its Lease and end
			t.Logf("Pod %d: %v", i, err)
			refused++
			b.fleet.revive(t)
			label(t, namespace, key, "")
			before = callsOf(t, entry)
			continue
		}
		took = append(took, time.Since(begin))
		after := callsOf(t, entry)
		called, injected := after > before, hasContainer(pod, labelled)
		before = after
		switch {
		case called && !injected:
			missed++
			t.Errorf("Pod %d in Namespace %s was asked about, and misses its sidecar", i, namespace)
		case !called && injected:
			forOthers++ // the call for the other SidecarSet injected it
		case !called:
			uncalled++
		}
		for _, name := range everywhere {
			if !hasContainer(pod, name) {
				t.Errorf("Pod %d misses the sidecar of the SidecarSet for all Namespaces", i)
			}
		}
		label(t, namespace, key, "")
	}
	testkit.Report(t, "Pods=%d missed-though-called=%d not-called=%d injected-by-another-call=%d refused=%d creation %s", count, missed, uncalled, forOthers, refused, testkit.Spread(took))
	if refused > count/10 {
		t.Errorf("%d of %d Pods were refused", refused, count)
	}
	if uncalled > count/2 {
		t.Errorf("API servers called for %d of %d Pods only: little was tested", count-uncalled, count)
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

// entryFor is the name of the entry for Namespaces with a label.
func entryFor(t *testing.T, key string) string {
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
	t.Fatalf("no entry for Namespaces with the label %s", key)
	return ""
}

// callsOf is how often the first API server has called the webhook of an entry.
func callsOf(t *testing.T, entry string) float64 {
	t.Helper()
	return metric(t, metricsOf(t, 0), "apiserver_admission_webhook_request_total", `name="`+entry+`"`)
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

func hasContainer(pod *corev1.Pod, name string) bool {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return true
		}
	}
	return false
}

func toAny(names []string) []any {
	out := make([]any, len(names))
	for i, name := range names {
		out[i] = name
	}
	return out
}
