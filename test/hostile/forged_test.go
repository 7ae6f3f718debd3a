package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// Any Pod of the cluster can send an AdmissionReview to replicas, and an AdmissionReview
// has no proof of its origin. An unauthenticated client asks for webhooks that would refuse other people's
// Pods, and pretends changes of a SidecarSet that is Ready. Replicas add only a few webhooks,
// for a short time, and none that refuses a Pod; only a few needs; and write seldom. Meanwhile
// the Pods of that SidecarSet are injected, and a SidecarSet that is applied is Ready.
func TestForgedReviewsLeaveFewWebhooks(t *testing.T) {
	operator.NeedReplicas(t)
	namespace := apply(t, "forged-before")
	before, err := testkit.Get(t.Context(), api, "forged-before")
	if err != nil {
		t.Fatal(err)
	}

	seen, watching := watchForged(t, before)
	ctx, stop := context.WithCancel(t.Context())
	forging := make(chan int)
	begin := time.Now()
	go func() {
		forging <- forge(ctx, t, before, testkit.Scaled(900, 3000), testkit.Scaled(9*time.Second, time.Minute))
	}()

	// The forged selectors select the Pods of hit, and not those of spared.
	times := map[string][]time.Duration{forgedApp: nil, "spared": nil, "forged-before": nil}
	applied, sent := false, 0
	for done := false; !done; {
		select {
		case sent = <-forging:
			done = true
		default:
		}
		for app := range times {
			began := time.Now()
			var err error
			if app == "forged-before" {
				err = testkit.TryPod(t.Context(), clients[0], namespace, app, "")
			} else {
				err = createPod(t.Context(), namespace, app)
			}
			if err != nil {
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
	watching()
	hit, spared, injected := times[forgedApp], times["spared"], times["forged-before"]
	testkit.Report(t, "reviews=%d in %s: webhooks-at-once=%d webhooks=%d dependencies-of-a-webhook=%d writes=%d; Pods that they select: %s mean=%s; others: %s mean=%s; added=%s; Pods of the SidecarSet: %s",
		sent, testkit.Rounded(took), seen.most, len(seen.names), seen.dependencies, seen.writes, testkit.Spread(hit), testkit.Rounded(mean(hit)), testkit.Spread(spared), testkit.Rounded(mean(spared)),
		testkit.Rounded(mean(hit)-mean(spared)), testkit.Spread(injected))
	// Each replica adds the most, if it sees the other's webhooks late.
	if sent == 0 || seen.most > len(replicas)*podwebhook.MaxUnstored || len(seen.failing) > 0 {
		t.Errorf("%d reviews brought about %d webhooks at a time, of which %v refuse Pods", sent, seen.most, seen.failing)
	}
	if len(seen.changed) > 0 {
		t.Errorf("the webhook of the stored SidecarSet was changed: %v", seen.changed)
	}
	if most := 16 + 1; seen.dependencies > most { // unstored ones, and the stored one
		t.Errorf("a webhook had %d dependencies, want %d at most", seen.dependencies, most)
	}
	// Each replica writes five hundred times, and then once in ten seconds. The leader removes what
	// each write added. The SidecarSet that was applied takes a few more.
	if most := 2*len(replicas)*(500+int(took.Seconds())/10) + 50; seen.writes > most {
		t.Errorf("shards were written %d times, want %d at most", seen.writes, most)
	}
	await.Eventually(t, "the end of what was forged", func(ctx context.Context) error {
		shards, _, err := testkit.Shards(ctx, clients[0])
		if err != nil {
			return err
		}
		if left := len(forgedWebhooks(shards)); left > 0 {
			return fmt.Errorf("%d webhooks are left", left)
		}
		if left := dependenciesOf(shards, before); left != 1 && !testkit.Scaled(true, false) { // it takes 90 s
			return fmt.Errorf("%d needs are left", left)
		}
		return nil
	})
	testkit.AwaitReady(t, api, "forged-before", "forged-meanwhile")
}

// forgedApp is the label of the Pods that the unauthenticated client attacks.
const forgedApp = "other-peoples"

// forge sends replicas count reviews of SidecarSets that no API server stores, in about the
// time took. It returns how many of them were allowed.
func forge(ctx context.Context, t *testing.T, stored *appsv1beta1.SidecarSet, count int, took time.Duration) int {
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
		body, err := forgedReview(i, stored)
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
			return nil // a replica may refuse an unauthenticated client's connection
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

// forgedReview returns the i-th review. One of four is of a SidecarSet with another selector for the
// same Pods. The others have the selectors of a stored SidecarSet: another name, its name with
// another UID, or a generation of it that does not come.
func forgedReview(i int, stored *appsv1beta1.SidecarSet) ([]byte, error) {
	metadata := map[string]any{
		"name": fmt.Sprint("ghost-", i), "uid": fmt.Sprintf("%08x-0000-4000-8000-000000000000", i), "generation": 1,
		"annotations": map[string]any{appsv1beta1.AnnotationTimeoutSeconds: "30"},
	}
	selectors := map[string]any{"selector": stored.Spec.Selector, "namespaceSelector": stored.Spec.NamespaceSelector}
	switch i % 4 {
	case 0:
		selectors = map[string]any{"selector": map[string]any{
			"matchLabels":      testkit.AppLabels(forgedApp),
			"matchExpressions": []any{map[string]any{"key": fmt.Sprint("forged-", i), "operator": "DoesNotExist"}},
		}}
	case 1:
		metadata["name"] = stored.Name
	case 2:
		metadata["name"], metadata["uid"], metadata["generation"] = stored.Name, stored.UID, 1000+i
	}
	spec := map[string]any{
		"updateStrategy": map[string]any{"type": "NotUpdate", "partition": 0, "maxUnavailable": 1},
		"containers": []any{map[string]any{
			"name": "c", "image": "example.com/x:v1", "imagePullPolicy": "IfNotPresent", "podInjectPolicy": "BeforeAppContainer",
			"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
			"upgradeStrategy": map[string]any{"upgradeType": "ColdUpgrade"}, "shareVolumePolicy": map[string]any{"type": "disabled"},
		}},
	}
	maps.Copy(spec, selectors)
	raw, err := json.Marshal(map[string]any{"apiVersion": appsv1beta1.GroupVersion.String(), "kind": appsv1beta1.Kind.Kind, "metadata": metadata, "spec": spec})
	if err != nil {
		return nil, err
	}
	return json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID:       "forged",
			Kind:      metav1.GroupVersionKind{Group: "apps.kruise.io", Version: "v1beta1", Kind: "SidecarSet"},
			Resource:  metav1.GroupVersionResource{Group: "apps.kruise.io", Version: "v1beta1", Resource: "sidecarsets"},
			Name:      fmt.Sprint(metadata["name"]),
			Operation: admissionv1.Create,
			DryRun:    new(false),
			UserInfo:  authenticationv1.UserInfo{Username: "system:admin", Groups: []string{"system:masters"}},
			Object:    runtime.RawExtension{Raw: raw},
		},
	})
}

// forgedWebhooks returns the webhooks that select the Pods that the unauthenticated client attacks.
func forgedWebhooks(shards [podwebhook.Shards]*podwebhook.Shard) (found []admissionregistrationv1.MutatingWebhook) {
	for _, shard := range shards {
		if shard == nil {
			continue
		}
		for _, w := range shard.Object.Webhooks {
			if w.ObjectSelector != nil && w.ObjectSelector.MatchLabels["app"] == forgedApp {
				found = append(found, w)
			}
		}
	}
	return found
}

// dependenciesOf is the number of dependencies of a SidecarSet's webhook.
func dependenciesOf(shards [podwebhook.Shards]*podwebhook.Shard, set *appsv1beta1.SidecarSet) (n int) {
	e, err := podwebhook.Of(set)
	for _, shard := range shards {
		if err == nil && shard != nil {
			n += len(shard.Dependencies[e.Name])
		}
	}
	return n
}

// forged is what the test saw of forged reviews.
type forged struct {
	writes       int // of shards
	most         int // webhooks at a time
	names        map[string]bool
	failing      []string
	dependencies int      // at a time, of the webhook of the stored SidecarSet
	changed      []string // policies, timeouts and selectors of that webhook, if they were others
}

// watchForged looks at all versions of the shards until end is called.
func watchForged(t *testing.T, stored *appsv1beta1.SidecarSet) (seen *forged, end func()) {
	t.Helper()
	seen = &forged{names: map[string]bool{}}
	e, err := podwebhook.Of(stored)
	if err != nil {
		t.Fatal(err)
	}
	first := ""
	return seen, testkit.WatchShards(t, clients[0], func(_ int, shards [podwebhook.Shards]*podwebhook.Shard) {
		found := forgedWebhooks(shards)
		seen.writes++
		seen.most, seen.dependencies = max(seen.most, len(found)), max(seen.dependencies, dependenciesOf(shards, stored))
		for _, shard := range shards {
			if shard == nil {
				continue
			}
			for _, w := range shard.Object.Webhooks {
				is := fmt.Sprint(*w.FailurePolicy, *w.TimeoutSeconds, w.ObjectSelector, w.NamespaceSelector)
				if first == "" && w.Name == e.Name {
					first = is
				}
				if w.Name == e.Name && is != first {
					seen.changed = append(seen.changed, is)
				}
			}
		}
		for _, w := range found {
			if !seen.names[w.Name] && *w.FailurePolicy != admissionregistrationv1.Ignore {
				seen.failing = append(seen.failing, w.Name)
			}
			seen.names[w.Name] = true
		}
	})
}

func mean(times []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range times {
		sum += d
	}
	return sum / time.Duration(max(len(times), 1))
}
