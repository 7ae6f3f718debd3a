package sidecarsets_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/sidecarsets"
)

// hanging is an API server that accepts requests and never answers.
type hanging struct{ client.Reader }

func (hanging) Get(ctx context.Context, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hanging) List(ctx context.Context, _ client.ObjectList, _ ...client.ListOption) error {
	<-ctx.Done()
	return ctx.Err()
}

// If one of several look-ups hangs, the API server gets an answer that names it before it
// stops waiting, which is after one second or after five.
func TestALookUpThatHangsIsNamedBeforeTheAPIServerGivesUp(t *testing.T) {
	ask := sidecarsets.NewValidator(sidecarsets.ValidatorOptions{
		Stored: func(ctx context.Context) (*match.Snapshot, error) { <-ctx.Done(); return nil, ctx.Err() },
		Reader: hanging{}, Namespace: "ours",
	})
	manifests := map[string]struct{ manifest, object string }{
		"the other SidecarSets": {betaManifest, "the other SidecarSets"},
		"a named revision":      {strings.Replace(betaManifest, "spec:\n", "spec:\n  injectionStrategy: {revision: {revisionName: s-1}}\n", 1), "the ControllerRevisions of SidecarSet"},
	}
	for _, timeout := range []time.Duration{time.Second, 5 * time.Second} {
		for name, tc := range manifests {
			body := sidecarSetReview(t, defaulted(t, tc.manifest), "")
			t.Run(name+" within "+timeout.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					waits, cancel := context.WithTimeout(t.Context(), timeout)
					defer cancel()
					r := httptest.NewRequestWithContext(waits, http.MethodPost, "/?timeout="+timeout.String(), bytes.NewReader(body))
					r.Header.Set("Content-Type", "application/json")
					w := httptest.NewRecorder()
					ask.ServeHTTP(w, r)
					if waits.Err() != nil {
						t.Error("the API server does not wait any more")
					}
					want := "looking up " + tc.object
					if answer := fixtures.DecodeReview(t, w); answer.Allowed || !strings.Contains(answer.Result.Message, want) || !strings.Contains(answer.Result.Message, "deadline exceeded") {
						t.Errorf("allowed %t, %v; want %q", answer.Allowed, answer.Result, want)
					}
				})
			})
		}
	}
}
