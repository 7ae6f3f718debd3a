package pods_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// A Namespace that a stranger makes up costs the API server a read. Meanwhile Pods in known
// Namespaces are answered, and so are Pods in new Namespaces that API servers send.
func TestMadeUpNamespacesCostFewReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		catalog := catalogOf(t, inProd("log", "web"))
		live := &liveNamespaces{labels: map[string]labels.Set{"default": {"env": "prod"}, "young": {"env": "prod"}}}
		from := netip.MustParseAddr("10.1.0.1") // the stranger
		injector := newInjector(pods.Options{
			Snapshot: func() *match.Snapshot { return catalog }, Namespaces: live,
			Client: func(context.Context) netip.Addr { return from },
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
				if code := send([]server.Handler{injector.static, injector.slot}[i%2], fmt.Sprint("made-up-", i)); code != http.StatusServiceUnavailable {
					t.Fatalf("a Namespace that does not exist is answered with %d", code)
				}
			}
			return live.reads - before
		}
		if reads := attack(500); reads > 300 {
			t.Errorf("500 reviews at once cost %d reads", reads)
		}
		<-time.After(time.Second)
		if reads := attack(500); reads == 0 || reads > 100 {
			t.Errorf("500 reviews a second later cost %d reads", reads)
		}
		for i := range 300 {
			if code := send(injector.static, "default"); code != http.StatusOK {
				t.Fatalf("Pod %d of a Namespace that is known is answered with %d", i, code)
			}
		}
		// By chance an API server may share its bucket with the stranger, but not all three.
		served := 0
		for server := range byte(3) {
			from = netip.AddrFrom4([4]byte{10, 0, 0, server})
			for range 100 {
				if code := send(injector.static, "young"); code == http.StatusOK {
					served++
				}
			}
		}
		if served < 100 {
			t.Errorf("only %d of 300 Pods of a new Namespace are answered", served)
		}
		// A stranger with many addresses is bounded as well.
		before := live.reads
		for i := range 20 {
			from = netip.AddrFrom4([4]byte{10, 2, 0, byte(i)})
			attack(100)
		}
		if reads := live.reads - before; reads > 1000 {
			t.Errorf("20 clients cost %d reads", reads)
		}
	})
}
