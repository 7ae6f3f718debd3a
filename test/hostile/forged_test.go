package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// Any Pod of the cluster can send an AdmissionReview to replicas, and an AdmissionReview
// has no proof of its origin. A stranger asks for entries that would refuse other people's
// Pods. Replicas add only a few entries, for a short time, and none that refuses a Pod. A
// SidecarSet that is applied meanwhile is in force.
func TestForgedReviewsLeaveFewEntries(t *testing.T) {
	operator.NeedReplicas(t)
	namespace := apply(t, "forged-before")

	watching := watchForged(t)
	ctx, stop := context.WithCancel(t.Context())
	forging := make(chan int)
	begin := time.Now()
	go func() {
		forging <- forge(ctx, t, testkit.Scaled(300, 2000), testkit.Scaled(9*time.Second, time.Minute))
	}()

	// The forged selectors select the Pods of hit, and not those of spared.
	times := map[string][]time.Duration{forgedApp: nil, "spared": nil}
	applied, sent := false, 0
	for done := false; !done; {
		select {
		case sent = <-forging:
			done = true
		default:
		}
		for app := range times {
			began := time.Now()
			if err := createPod(t.Context(), namespace, app); err != nil {
				t.Fatal(err)
			}
			times[app] = append(times[app], time.Since(began))
		}
		if !applied && time.Since(begin) > testkit.Scaled(2*time.Second, 20*time.Second) {
			applied = true
			applyIn(t, namespace, "forged-meanwhile")
		}
	}
	stop()
	took := time.Since(begin)
	seen := watching()
	hit, spared := times[forgedApp], times["spared"]
	testkit.Report(t, "reviews=%d in %s: entries-at-once=%d entries=%d; Pods that they select: %s mean=%s; others: %s mean=%s; added=%s",
		sent, testkit.Rounded(took), seen.most, len(seen.names), testkit.Spread(hit), testkit.Rounded(mean(hit)), testkit.Spread(spared), testkit.Rounded(mean(spared)),
		testkit.Rounded(mean(hit)-mean(spared)))
	if sent == 0 || seen.most > 32 || len(seen.failing) > 0 {
		t.Errorf("%d reviews brought about %d entries at a time, of which %v refuse Pods", sent, seen.most, seen.failing)
	}
	await.Eventually(t, "the end of what was forged", func(ctx context.Context) error {
		left, err := forgedEntries(ctx)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d are left", len(left))
		}
		return err
	})
	testkit.AwaitReady(t, api, "forged-before", "forged-meanwhile")
}

// forgedApp is the label of the Pods that the stranger attacks.
const forgedApp = "other-peoples"

// forge sends replicas count reviews of SidecarSets that no API server stores, in about the
// time took. It returns how many of them were allowed.
func forge(ctx context.Context, t *testing.T, count int, took time.Duration) int {
	var httpClients []*http.Client
	for _, replica := range replicas {
		httpClient, err := replica.Client(ctx)
		if err != nil {
			t.Error(err)
			return 0
		}
		defer httpClient.CloseIdleConnections()
		httpClients = append(httpClients, httpClient)
	}
	numbers := make([]int, count)
	for i := range numbers {
		numbers[i] = i
	}
	var answered atomic.Int64
	begin := time.Now()
	err := testkit.Each(numbers, 20, func(i int) error {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(begin.Add(time.Duration(i) * took / time.Duration(count)))):
		}
		body, err := forgedReview(i)
		if err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+deploy.ServerName+"/validate-apps-kruise-io-sidecarset", bytes.NewReader(body))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := httpClients[i%len(httpClients)].Do(request)
		if err != nil {
			return nil // a replica may refuse a stranger's connection
		}
		defer response.Body.Close()
		if text, err := io.ReadAll(response.Body); err == nil && bytes.Contains(text, []byte(`"allowed":true`)) {
			answered.Add(1)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return int(answered.Load())
}

// forgedReview returns the i-th review. Each has another selector for the same Pods.
func forgedReview(i int) ([]byte, error) {
	set := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": appsv1beta1.GroupVersion.String(), "kind": appsv1beta1.Kind.Kind,
		"metadata": map[string]any{"name": fmt.Sprint("ghost-", i), "annotations": map[string]any{appsv1beta1.AnnotationTimeoutSeconds: "30"}},
		"spec": map[string]any{
			"selector": map[string]any{
				"matchLabels":      testkit.AppLabels(forgedApp),
				"matchExpressions": []any{map[string]any{"key": fmt.Sprint("forged-", i), "operator": "DoesNotExist"}},
			},
			"updateStrategy": map[string]any{"type": "NotUpdate", "partition": 0, "maxUnavailable": 1},
			"containers": []any{map[string]any{
				"name": "c", "image": "example.com/x:v1", "imagePullPolicy": "IfNotPresent", "podInjectPolicy": "BeforeAppContainer",
				"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
				"upgradeStrategy": map[string]any{"upgradeType": "ColdUpgrade"}, "shareVolumePolicy": map[string]any{"type": "disabled"},
			}},
		},
	}}
	raw, err := json.Marshal(set.Object)
	if err != nil {
		return nil, err
	}
	return json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID:       "forged",
			Kind:      metav1.GroupVersionKind{Group: "apps.kruise.io", Version: "v1beta1", Kind: "SidecarSet"},
			Resource:  metav1.GroupVersionResource{Group: "apps.kruise.io", Version: "v1beta1", Resource: "sidecarsets"},
			Name:      set.GetName(),
			Operation: admissionv1.Create,
			DryRun:    new(false),
			UserInfo:  authenticationv1.UserInfo{Username: "system:admin", Groups: []string{"system:masters"}},
			Object:    runtime.RawExtension{Raw: raw},
		},
	})
}

// forgedEntries returns the entries that select the Pods that the stranger attacks.
func forgedEntries(ctx context.Context) ([]admissionregistrationv1.MutatingWebhook, error) {
	list, err := clients[0].AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{LabelSelector: entryplan.Labelled().String()})
	if err != nil {
		return nil, err
	}
	var found []admissionregistrationv1.MutatingWebhook
	for i := range list.Items {
		for _, w := range list.Items[i].Webhooks {
			if w.ObjectSelector != nil && w.ObjectSelector.MatchLabels["app"] == forgedApp || strings.HasPrefix(w.Name, "all.") {
				found = append(found, w)
			}
		}
	}
	return found, nil
}

// forged is what the test saw of forged entries.
type forged struct {
	most    int // at a time
	names   map[string]bool
	failing []string
}

// watchForged looks for forged entries until the returned function is called.
func watchForged(t *testing.T) func() forged {
	ctx, stop := context.WithCancel(t.Context())
	seen, done := forged{names: map[string]bool{}}, make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(20 * time.Millisecond):
			}
			found, err := forgedEntries(ctx)
			if err != nil {
				continue // an API server may be busy
			}
			seen.most = max(seen.most, len(found))
			for _, w := range found {
				if !seen.names[w.Name] && *w.FailurePolicy != admissionregistrationv1.Ignore {
					seen.failing = append(seen.failing, w.Name)
				}
				seen.names[w.Name] = true
			}
		}
	}()
	return func() forged {
		stop()
		<-done
		return seen
	}
}

func mean(times []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range times {
		sum += d
	}
	return sum / time.Duration(max(len(times), 1))
}
