package chaos

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// arm is one kind of Pod whose creation is timed.
type arm struct {
	pod      func() *corev1.Pod
	sidecars []string
	times    []time.Duration
	medians  []time.Duration // one for each round
	before   func()          // called before each turn; may be nil
}

// What SidecarSets add to the time of a Pod's creation. Of many SidecarSets, none, one or
// three select a Pod; such Pods are created in turns. The test compares them with two other
// kinds. Pods that have the sidecars in their manifest are stored with the same content.
// Pods of a webhook that answers at once, with no patch or with the operator's patch,
// show what any webhook costs the API server.
//
// This test is a report. It asserts only that each Pod has the right containers.
func TestAddedLatencyOfACreation(t *testing.T) {
	f := startReplicas(t, 2, steadyLeases...)
	namespace := newNamespace(t)
	var all []*unstructured.Unstructured
	var names []string
	for i := range testkit.Scaled(20, 100) {
		name := fmt.Sprintf("ab-%d", i)
		names = append(names, name)
		all = append(all, testkit.NewSet(name, namespace, map[string]string{name: "yes"}))
	}
	createSets(t, all)
	testkit.AwaitReady(t, api, names...)
	installWebhook(t, "empty-webhook", noPatch)
	installWebhook(t, "same-patch", samePatch(t, f.replicas[0], "same-patch", names[0]))
	for _, concurrency := range []int{1, 8} {
		arms := map[string]*arm{
			"none": newArm(nil, nil, nil), "k=1": newArm(nil, all[:1], nil), "k=3": newArm(nil, all[:3], nil),
			"none,1-inline": newArm(nil, nil, all[:1]), "none,3-inline": newArm(nil, nil, all[:3]),
			"empty-webhook": newArm(map[string]string{"empty-webhook": "yes"}, nil, nil),
			"same-patch":    newArm(map[string]string{"same-patch": "yes"}, nil, nil),
		}
		arms["same-patch"].sidecars = names[:1]
		timeArms(t, namespace, arms, concurrency)
		for _, pair := range [][2]string{
			{"none", "none"}, {"k=1", "none"}, {"k=3", "none"}, {"empty-webhook", "none"}, {"same-patch", "none"}, {"none,1-inline", "none"}, {"none,3-inline", "none"},
			{"k=1", "none,1-inline"}, {"k=3", "none,3-inline"}, {"k=1", "empty-webhook"}, {"k=1", "same-patch"},
		} {
			a, base := arms[pair[0]], arms[pair[1]]
			testkit.Report(t, "concurrency=%d %s against %s: creations=%d %s p50-ratio=%.2f p99-ratio=%.2f round-ratio=%.2f", concurrency, pair[0], pair[1],
				len(a.times), testkit.Spread(a.times), ratio(a.times, base.times, 0.5), ratio(a.times, base.times, 0.99), roundRatio(a.medians, base.medians))
		}
	}
}

// What a Pod right behind its SidecarSet costs more than one long after it (P11), with few and
// with many SidecarSets. In turns, Pods are created of a SidecarSet that does not change, and of
// one that was changed just before the turn: of another one each time ("once"), or always of the
// same one ("again"). The first Pod of such a turn may have to wait: the API server opens a
// connection, and the replica may read what it does not know yet.
//
// This test is a report, too.
func TestAddedLatencyBehindAChange(t *testing.T) {
	startReplicas(t, 2, steadyLeases...)
	namespace := newNamespace(t)
	const changing = 12
	var all []*unstructured.Unstructured
	for _, count := range []int{changing + 2, 100, 500}[:testkit.Scaled(1, 3)] {
		var names []string
		for i := len(all); i < count; i++ {
			name := fmt.Sprintf("behind-%d", i)
			names = append(names, name)
			all = append(all, testkit.NewSet(name, namespace, map[string]string{name: "yes"}))
		}
		createSets(t, all[count-len(names):])
		testkit.AwaitReady(t, api, names...)
		changes := 0
		for name, next := range map[string]func() int{
			"once":  func() int { return 2 + changes%changing },
			"again": func() int { return 1 },
		} {
			var firsts []time.Duration
			arms := map[string]*arm{"none": newArm(nil, nil, nil), "later": newArm(nil, all[:1], nil), name: {}}
			arms[name].before = func() {
				at := next()
				changes++
				selecting := newArm(nil, all[at:at+1], nil)
				arms[name].pod, arms[name].sidecars = selecting.pod, selecting.sidecars
				mustChangeImage(t, all[at].GetName(), fmt.Sprintf("example.com/sidecar:v%d.%d", count, changes))
				firsts = append(firsts, selecting.create(t, namespace, 1, 1)...)
			}
			timeArms(t, namespace, arms, 1)
			a, base := arms[name], arms["later"]
			testkit.Report(t, "SidecarSets=%d none: %s; later: %s; the first Pod behind a change: %s", count, testkit.Spread(arms["none"].times), testkit.Spread(base.times), testkit.Spread(firsts))
			testkit.Report(t, "SidecarSets=%d %s against later: creations=%d %s p50-difference=%s round-ratio=%.2f", count, name,
				len(a.times), testkit.Spread(a.times), testkit.Rounded(testkit.Quantile(a.times, 0.5)-testkit.Quantile(base.times, 0.5)), roundRatio(a.medians, base.medians))
		}
	}
}

// timeArms creates Pods of all arms in turns. Each round begins with another arm.
func timeArms(t *testing.T, namespace string, arms map[string]*arm, concurrency int) {
	t.Helper()
	names := slices.Sorted(maps.Keys(arms))
	for round := range testkit.Scaled(1, 40) + 1 {
		for i := range names {
			arms[names[(i+round)%len(names)]].createRound(t, namespace, concurrency, round)
		}
		emptyNamespace(t, namespace)
	}
}

// installWebhook makes API servers send Pods with the label to a server in this process. It
// allows them with the patch that the function patch returns for the review.
func installWebhook(t *testing.T, label string, patch func(review []byte) ([]byte, error)) {
	t.Helper()
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: label},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name:         label + ".webhook.test",
			ClientConfig: answering(t, patch, false),
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
			ObjectSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{label: "yes"}},
			SideEffects:             new(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	configurations := clients[0].AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := configurations.Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := configurations.Delete(context.WithoutCancel(t.Context()), configuration.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// answering starts a server in this process, which answers every review at once: it allows
// the object with the patch that the function patch returns for the review. Its certificate
// is of the same kind as the operator's. API servers call it over HTTP/2, or over HTTP/1.1
// as they call a Service.
func answering(t *testing.T, patch func(review []byte) ([]byte, error), http2 bool) admissionregistrationv1.WebhookClientConfig {
	t.Helper()
	ca, err := certs.IssueCA("answering", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.IssueLeaf(certs.Subject{IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var review struct {
			metav1.TypeMeta
			Request struct{ UID types.UID }
		}
		if err := json.Unmarshal(body, &review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if answer.Patch, err = patch(body); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if answer.Patch != nil {
			answer.PatchType = new(admissionv1.PatchTypeJSONPatch)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: answer})
	}))
	server.TLS, server.EnableHTTP2 = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*leaf}}, http2
	server.StartTLS()
	t.Cleanup(server.Close)
	return admissionregistrationv1.WebhookClientConfig{
		URL:      &server.URL,
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate.Raw}),
	}
}

// noPatch changes nothing.
func noPatch([]byte) ([]byte, error) { return nil, nil }

// samePatch returns one patch for every Pod: the replica's patch for the first Pod, with the
// label of the SidecarSet in the place of the webhook's label.
func samePatch(t *testing.T, replica *deploy.Replica, label, sidecarSet string) func([]byte) ([]byte, error) {
	var patch []byte
	var err error
	var once sync.Once
	return func(review []byte) ([]byte, error) {
		once.Do(func() {
			patch, err = replica.Patch(t.Context(), bytes.Replace(review, []byte(`"`+label+`":"yes"`), []byte(`"`+sidecarSet+`":"yes"`), 1))
		})
		return patch, err
	}
}

// newArm returns an arm whose Pods are selected by the SidecarSets in selecting, and have
// the containers of those in inline in their manifest.
func newArm(labels map[string]string, selecting, inline []*unstructured.Unstructured) *arm {
	a := &arm{}
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	for _, set := range selecting {
		labels[set.GetName()] = "yes"
		a.sidecars = append(a.sidecars, set.GetName())
	}
	for _, set := range inline {
		a.sidecars = append(a.sidecars, set.GetName())
	}
	a.pod = func() *corev1.Pod {
		pod := testkit.NewPod(labels)
		for _, set := range inline {
			addInline(pod, set.GetName())
		}
		return pod
	}
	return a
}

// addInline adds what a SidecarSet of newSet would.
func addInline(pod *corev1.Pod, name string) {
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
		Name: name, Image: "example.com/sidecar:v1",
		Env:          []corev1.EnvVar{{Name: "LEVEL", Value: "info"}, {Name: "IS_INJECTED", Value: "true"}},
		VolumeMounts: []corev1.VolumeMount{{Name: name, MountPath: "/var/log/sidecar"}},
	})
}

// createRound creates the Pods of a round. The first round does not count: it warms up.
func (a *arm) createRound(t *testing.T, namespace string, concurrency, round int) {
	t.Helper()
	if a.before != nil {
		a.before()
	}
	times := a.create(t, namespace, concurrency, testkit.Scaled(8, 80))
	if round > 0 {
		a.times = append(a.times, times...)
		a.medians = append(a.medians, testkit.Quantile(times, 0.5))
	}
}

// create makes count Pods, concurrency at the same time, and returns how long each took.
func (a *arm) create(t *testing.T, namespace string, concurrency, count int) []time.Duration {
	t.Helper()
	times := make([]time.Duration, count)
	indices := make([]int, count)
	for i := range indices {
		indices[i] = i
	}
	err := testkit.Each(indices, concurrency, func(i int) error {
		pod, begin := a.pod(), time.Now()
		pod, err := clients[0].CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		times[i] = time.Since(begin)
		if err == nil && !testkit.Injected(pod, a.sidecars) {
			err = fmt.Errorf("a Pod has not the sidecars %q", a.sidecars)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return times
}

func emptyNamespace(t *testing.T, namespace string) {
	t.Helper()
	err := clients[0].CoreV1().Pods(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func ratio(times, base []time.Duration, q float64) float64 {
	return float64(testkit.Quantile(times, q)) / float64(testkit.Quantile(base, q))
}

// roundRatio is the median of the rounds' ratios: noise that lasts longer than a
// round does not change it.
func roundRatio(medians, base []time.Duration) float64 {
	var ratios []float64
	for i := range medians {
		ratios = append(ratios, float64(medians[i])/float64(base[i]))
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}
