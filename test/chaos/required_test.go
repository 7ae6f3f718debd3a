package chaos

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// installRequired applies config/required until the test ends.
func installRequired(t *testing.T) {
	t.Helper()
	policy := filepath.Join(deploy.Root(), "config/required")
	testkit.Kubectl(t, cluster, "", "apply", "--server-side", "-k", policy)
	t.Cleanup(func() {
		if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), "", "delete", "-k", policy); err != nil {
			t.Error(err)
		}
	})
}

// lenient returns a SidecarSet without which Pods are created if no replica answers within a second.
func lenient(name, namespace string) *unstructured.Unstructured {
	set := testkit.NewSet(name, namespace, testkit.AppLabels(name))
	set.SetAnnotations(map[string]string{appsv1beta1.AnnotationFailurePolicy: "Ignore", appsv1beta1.AnnotationTimeoutSeconds: "1"})
	return set
}

// require labels a SidecarSet.
func require(set *unstructured.Unstructured) *unstructured.Unstructured {
	set.SetLabels(map[string]string{appsv1beta1.LabelRequired: "true"})
	return set
}

// awaitRefusals waits until each API server refuses a Pod of a required SidecarSet, which is not
// injected.
func awaitRefusals(t *testing.T, namespace, sidecarSet string) {
	t.Helper()
	for i := range clients {
		await.Eventually(t, fmt.Sprintf("the policy in API server %d", i+1), func(ctx context.Context) error {
			return wantRefusal(testkit.TryPod(ctx, clients[i], namespace, sidecarSet, ""), sidecarSet)
		})
	}
}

// wantRefusal returns an error unless err is a refusal by the policy that names the SidecarSet and the remedy.
func wantRefusal(err error, sidecarSet string) error {
	if err == nil {
		return errors.New("the Pod is not refused")
	}
	if !isRefusal(err.Error(), sidecarSet) {
		return fmt.Errorf("the Pod is answered with %w", err)
	}
	return nil
}

func isRefusal(message, sidecarSet string) bool {
	return strings.Contains(message, "the Pod lacks sidecars of SidecarSet "+sidecarSet+", which is required") && strings.Contains(message, "kubectl get sidecarset "+sidecarSet)
}

// unregister empties the webhook configurations for Pods every 0.7 s until stop is called.
func unregister(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		configurations := clients[0].AdmissionregistrationV1().MutatingWebhookConfigurations()
		for ; ctx.Err() == nil; wait(ctx, 700*time.Millisecond) {
			list, err := configurations.List(ctx, metav1.ListOptions{LabelSelector: podwebhook.Labelled().String()})
			if err != nil {
				continue
			}
			for i := range list.Items {
				_, _ = configurations.Patch(ctx, list.Items[i].Name, types.MergePatchType, []byte(`{"webhooks":[]}`), metav1.PatchOptions{})
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// stripper is a webhook that API servers call after the operator's, and that removes the second container.
func stripper(t *testing.T, namespace string) (stop func()) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		var pod corev1.Pod
		if err := errors.Join(json.NewDecoder(r.Body).Decode(&review), json.Unmarshal(review.Request.Object.Raw, &pod)); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if len(pod.Spec.Containers) > 1 {
			review.Response.PatchType, review.Response.Patch = new(admissionv1.PatchTypeJSONPatch), []byte(`[{"op":"remove","path":"/spec/containers/1"}]`)
		}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close) // not earlier: API servers call the webhook for some time after its configuration is deleted
	configurations := clients[0].AdmissionregistrationV1().MutatingWebhookConfigurations()
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "zz-strip"}, // API servers call webhooks by the names of their objects
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "strip.example.com", SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &server.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}
	if _, err := configurations.Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := configurations.Delete(context.WithoutCancel(t.Context()), configuration.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
}

// Whatever happens to webhooks and replicas, no Pod is created without the sidecar of a required
// SidecarSet. The same faults let Pods through without the sidecar of another SidecarSet.
func TestNoFaultLetsAPodWithoutARequiredSidecarThrough(t *testing.T) {
	controllers := startControllers(t, 1)
	replicas := startReplicas(t, 1, "--role=webhook")
	namespace := testkit.Namespace(t, api, nil)
	installRequired(t)
	t.Run("a Namespace is labelled under load", func(t *testing.T) { labelUnderLoad(t, controllers) })
	createSets(t, []*unstructured.Unstructured{require(lenient("must", namespace)), lenient("may", namespace)})
	testkit.AwaitReady(t, api, "must", "may")
	awaitInjection(t, replicas, namespace, "must", 5)
	awaitInjection(t, replicas, namespace, "may", 5)
	frozen := func(signal syscall.Signal) {
		for _, replica := range replicas.replicas {
			if err := replica.Signal(signal); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, fault := range []struct {
		name  string
		begin func(*testing.T) (end func())
	}{
		{"webhook configurations are emptied", func(t *testing.T) func() {
			stop := unregister(t)
			awaitRefusals(t, namespace, "must") // an API server compiles a new policy within some seconds
			return stop
		}},
		{"another webhook strips a sidecar", func(*testing.T) func() { return stripper(t, namespace) }},
		{"replicas are frozen", func(*testing.T) func() {
			frozen(syscall.SIGSTOP)
			return func() { frozen(syscall.SIGCONT) }
		}},
		{"no replica runs", func(*testing.T) func() {
			replicas.kill()
			return func() {}
		}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			end := fault.begin(t)
			defer end()
			run := func(name string) *testkit.Running {
				return testkit.Load{Clients: clients, Namespace: namespace, Labels: testkit.AppLabels(name), Sidecars: []string{name}, Rate: testkit.Scaled(20, 40), DryRun: true}.Start(t.Context())
			}
			must, may := run("must"), run("may")
			await.Within(t, 20*time.Minute, "Pods", func(context.Context) error {
				a, b := must.Figures(), may.Figures()
				if want := testkit.Scaled(80, 2500); a.Created+a.Failed < want || b.Created+b.Failed < want || b.Uninjected == 0 {
					return fmt.Errorf("required: %s; not required: %s", &a, &b)
				}
				return nil
			})
			required, other := must.Stop(), may.Stop()
			testkit.Report(t, "required: %s; not required: %s", &required, &other)
			if required.Uninjected > 0 {
				t.Errorf("%d Pods were created without the required sidecar", required.Uninjected)
			}
			for _, message := range required.Errors {
				if !isRefusal(message, "must") {
					t.Errorf("a Pod was answered with %s, want a refusal by the policy", message)
				}
			}
		})
	}
}

// A Namespace gets the label that a required SidecarSet selects, while Pods are created in it and no webhook is called. From the first
// refusal of an API server on, this API server creates no Pod. The earlier ones are reported.
func labelUnderLoad(t *testing.T, controllers *fleet) {
	namespace := testkit.Namespace(t, api, nil)
	set := require(lenient("labelled", namespace))
	set.Object["spec"].(map[string]any)["namespaceSelector"] = map[string]any{"matchLabels": map[string]any{"team": "labelled"}}
	createSets(t, []*unstructured.Unstructured{set})
	testkit.AwaitReady(t, api, "labelled")
	stop := unregister(t)
	defer stop()

	type answer struct{ before, refused, after int }
	answers := make([]answer, len(clients))
	loaded := make(chan struct{})
	begin := sync.OnceFunc(func() { close(loaded) })
	err := testkit.Each([]int{0, 1, 2}, 3, func(i int) error {
		if i == len(clients) {
			<-loaded
			_, err := clients[0].CoreV1().Namespaces().Patch(t.Context(), namespace, types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"labelled"}}}`), metav1.PatchOptions{})
			return err
		}
		defer begin() // also if this API server fails
		for answers[i].refused < testkit.Scaled(50, 1000) {
			pod, err := clients[i].CoreV1().Pods(namespace).Create(t.Context(), testkit.NewPod(testkit.AppLabels("labelled")), metav1.CreateOptions{})
			switch {
			case err == nil && testkit.Injected(pod, []string{"labelled"}): // before the webhook configurations were emptied again
				continue
			case err != nil:
				if err := wantRefusal(err, "labelled"); err != nil {
					return err
				}
				answers[i].refused++
			case answers[i].refused > 0:
				answers[i].after++
			default:
				if answers[i].before++; answers[i].before == 20 {
					begin()
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	testkit.Report(t, "Pods created before the first refusal, refused, and created after it, by API server: %v", answers)
	without := 0
	for i := range answers {
		without += answers[i].before + answers[i].after
		if answers[i].after > 0 {
			t.Errorf("API server %d: %+v", i+1, answers[i])
		}
	}
	controllers.await(t, "labelled", "the Pods without the sidecar", func(set *appsv1beta1.SidecarSet) error {
		if int(set.Status.UninjectedPods) != without {
			return fmt.Errorf("%d are reported, and %d were created", set.Status.UninjectedPods, without)
		}
		return nil
	})
}
