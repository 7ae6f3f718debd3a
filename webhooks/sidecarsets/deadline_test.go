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
// stops waiting.
func TestALookUpThatHangsIsNamedBeforeTheAPIServerGivesUp(t *testing.T) {
	ask := sidecarsets.NewValidator(sidecarsets.ValidatorOptions{Stored: (&live{}).store, Reader: hanging{}, Namespace: "ours"})
	body := sidecarSetReview(t, defaulted(t, betaManifest+"  injectionStrategy: {revision: {revisionName: s-1}}\n"), "")
	synctest.Test(t, func(t *testing.T) {
		waits, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := httptest.NewRequestWithContext(waits, http.MethodPost, "/?timeout=1s", bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		ask.ServeHTTP(w, r)
		if waits.Err() != nil {
			t.Error("the API server does not wait any more")
		}
		answer := fixtures.DecodeReview(t, w)
		if answer.Allowed || !strings.Contains(answer.Result.Message, "looking up the ControllerRevisions of SidecarSet") || !strings.Contains(answer.Result.Message, "deadline exceeded") {
			t.Errorf("allowed %t, %v", answer.Allowed, answer.Result)
		}
	})
}
