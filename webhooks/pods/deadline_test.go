package pods_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// hanging is an API server that accepts requests and never answers.
type hanging struct{ client.Reader }

func (hanging) Get(ctx context.Context, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	<-ctx.Done()
	return ctx.Err()
}

// If a look-up hangs, the API server gets an answer that names it before it stops waiting,
// which is after one second or after five.
func TestALookUpThatHangsIsNamedBeforeTheAPIServerGivesUp(t *testing.T) {
	snapshot := storeOf(t, inProd("log", "web"))
	injector := func() paths {
		return newInjector(pods.Options{
			Snapshot:   func() *match.Snapshot { return snapshot },
			Ensure:     func(ctx context.Context, _ int, _ uint64, _ labels.Labels) error { <-ctx.Done(); return ctx.Err() },
			Namespaces: hanging{},
		})
	}
	for _, timeout := range []time.Duration{time.Second, 5 * time.Second} {
		for path, tc := range map[string]struct {
			handler func(paths) server.Handler
			message string
		}{
			"static": {func(i paths) server.Handler { return i.static }, "cannot tell which SidecarSets select Pod default/web: reading the labels of Namespace default: context deadline exceeded"},
			"shard":  {func(i paths) server.Handler { return i.shard }, "cannot tell which SidecarSets select Pod default/web: context deadline exceeded"},
		} {
			t.Run(path+" within "+timeout.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					injector := injector()
					waits, cancel := context.WithTimeout(t.Context(), timeout)
					defer cancel()
					r := httptest.NewRequestWithContext(waits, http.MethodPost, "/?timeout="+timeout.String(), bytes.NewReader(webReview(t, unchanged)))
					r.Header.Set("Content-Type", "application/json")
					w := httptest.NewRecorder()
					tc.handler(injector).ServeHTTP(w, r)
					if waits.Err() != nil {
						t.Error("the API server does not wait any more")
					}
					if w.Code != http.StatusServiceUnavailable {
						t.Errorf("code %d", w.Code)
					}
					checkStatus(t, w, tc.message)
					<-time.After(time.Minute) // the shared read continues until its own timeout
				})
			})
		}
	}
}
