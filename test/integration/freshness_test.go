package integration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/webhooks/entries"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// An API server builds its cache of SidecarSets again after each write of the
// CustomResourceDefinition, for instance for a new CA bundle. Meanwhile it answers look-ups
// from etcd. It does not ask the replica to try again after a second: if it did, it would
// create the Pod without its sidecars.
func TestALookUpDoesNotWaitForTheCacheOfAnAPIServer(t *testing.T) {
	t.Run("while it is built", whileTheCacheIsBuilt)
	awaitDefinition(t)
}

func whileTheCacheIsBuilt(t *testing.T) {
	config := cluster.Config()
	var refused atomic.Int64
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return answered(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if err == nil && response.StatusCode == http.StatusTooManyRequests {
				refused.Add(1)
			}
			return response, err
		})
	})
	live, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	knowledge := entries.NewKnowledge(entries.NewSlots(nil, live), snapshot.NewCatalog(nil, nil), snapshot.NewHealth(), live, nil)
	before, err := cluster.Kubectl(t.Context(), "", "get", "crd", deploy.CRD, "-o", "jsonpath={.spec.versions[0].schema.openAPIV3Schema.description}")
	if err != nil {
		t.Fatal(err)
	}
	describe := func(ctx context.Context, text string) {
		patch := fmt.Sprintf(`[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/description","value":%q}]`, text)
		if _, err := cluster.Kubectl(ctx, "", "patch", "crd", deploy.CRD, "--type=json", "-p", patch); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { describe(context.WithoutCancel(t.Context()), before) })
	for round := range 10 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			describe(t.Context(), fmt.Sprintf("%s (%d)", before, round))
		}()
		for began := time.Now(); time.Since(began) < 500*time.Millisecond; {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if err := knowledge.CatchUp(ctx); !errors.Is(err, context.DeadlineExceeded) { // its snapshot is empty
				t.Error(err)
			}
			cancel()
		}
		<-done
	}
	if refused.Load() > 0 {
		t.Errorf("the API server refused %d look-ups", refused.Load())
	}
}

type answered func(*http.Request) (*http.Response, error)

func (a answered) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }
