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

// If a look-up hangs, the API server gets an answer that names it before it stops waiting.
func TestALookUpThatHangsIsNamedBeforeTheAPIServerGivesUp(t *testing.T) {
	snapshot := storeOf(t, inProd("log", "web"))
	const unknown = "cannot tell which SidecarSets select Pod default/web: "
	for name, message := range map[string]string{"static": unknown + "reading the labels of Namespace default: context deadline exceeded", "shard": unknown + "context deadline exceeded"} {
		synctest.Test(t, func(t *testing.T) {
			paths := newInjector(pods.Options{
				Snapshot:   func() *match.Snapshot { return snapshot },
				Ensure:     func(ctx context.Context, _ int, _ uint64, _ labels.Labels) error { <-ctx.Done(); return ctx.Err() },
				Namespaces: hanging{},
			})
			waits, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			r := httptest.NewRequestWithContext(waits, http.MethodPost, "/?timeout=1s", bytes.NewReader(webReview(t, unchanged)))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			map[string]server.Handler{"static": paths.static, "shard": paths.shard}[name].ServeHTTP(w, r)
			if waits.Err() != nil || w.Code != http.StatusServiceUnavailable {
				t.Errorf("%s: code %d; whether the API server still waits: %v", name, w.Code, waits.Err())
			}
			checkStatus(t, w, message)
			<-time.After(time.Minute) // the shared read continues until its own timeout
		})
	}
}
