package pods_test

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// A Namespace that an unauthenticated client makes up costs the API server a read. Meanwhile Pods in known
// Namespaces are answered.
func TestMadeUpNamespacesCostFewReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storeOf(t, inProd("log", "web"))
		live := &liveNamespaces{labels: map[string]labels.Set{"default": {"env": "prod"}, "young": {"env": "prod"}}}
		injector := newInjector(pods.Options{
			Snapshot: func() *match.Snapshot { return store }, Namespaces: live,
		})
		send := func(handler server.Handler, namespace string) int {
			review := webReview(t, func(request map[string]any) { request["namespace"] = namespace })
			w := fixtures.Send(t, handler, bytes.NewReader(review))
			if w.Code == http.StatusServiceUnavailable && w.Header().Get("Retry-After") != "1" {
				t.Errorf("Retry-After is %q", w.Header().Get("Retry-After"))
			}
			return w.Code
		}
		attack := func(reviews int) (reads int) {
			before := live.reads
			for i := range reviews {
				if code := send([]server.Handler{injector.static, injector.shard}[i%2], fmt.Sprint("made-up-", i)); code != http.StatusServiceUnavailable {
					t.Fatalf("a Namespace that does not exist is answered with %d", code)
				}
			}
			return live.reads - before
		}
		if reads := attack(2000); reads > 900 {
			t.Errorf("2,000 reviews at once cost %d reads", reads)
		}
		<-time.After(time.Second)
		if reads := attack(2000); reads == 0 || reads > 300 {
			t.Errorf("2,000 reviews a second later cost %d reads", reads)
		}
		for i := range 300 {
			if code := send(injector.static, "default"); code != http.StatusOK {
				t.Fatalf("Pod %d of a Namespace that is known is answered with %d", i, code)
			}
		}
	})
}
