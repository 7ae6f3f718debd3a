package sidecarsets_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/webhooks/sidecarsets"
)

// registrar remembers the SidecarSets for which Register was called.
type registrar struct {
	err   error
	hangs bool
	sets  []string // apiVersion and name
}

func (w *registrar) Register(ctx context.Context, set *appsv1beta1.SidecarSet) error {
	w.sets = append(w.sets, set.APIVersion+" "+set.Name)
	if left, bounded := ctx.Deadline(); !bounded || time.Until(left) > time.Second {
		return errors.New("the user would wait for long")
	}
	if w.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return w.err
}

func TestSidecarSetIsRegisteredWhileItIsAdmitted(t *testing.T) {
	alpha := strings.Replace(betaManifest, "v1beta1", "v1alpha1", 1)
	changed := strings.Replace(betaManifest, "{name: log}", "{name: log, generation: 2}", 1) // as the API server counts
	annotated := strings.Replace(betaManifest, "{name: log}", "{name: log, annotations: {sidecarset.io/failure-policy: Ignore}}", 1)
	beta := []string{"apps.kruise.io/v1beta1 log"}
	tests := map[string]struct {
		manifest, old string
		dryRun        bool
		want          []string
	}{
		"a new one is":                      {manifest: betaManifest, want: beta},
		"one of v1alpha1 is, as v1beta1":    {manifest: alpha, want: beta},
		"a changed one is":                  {manifest: changed, old: betaManifest, want: beta},
		"one with another annotation isn't": {manifest: annotated, old: betaManifest},
		"the same in another version isn't": {manifest: betaManifest, old: alpha},
		"an unchanged one is not":           {manifest: betaManifest, old: betaManifest},
		"one under dry-run is not":          {manifest: betaManifest, dryRun: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := &registrar{}
			answer := fixtures.Review(t, registration(w), registerReview(t, tc.manifest, tc.old, tc.dryRun))
			if !answer.Allowed || len(answer.Warnings) != 0 {
				t.Fatalf("got %+v, warnings %v", answer.Result, answer.Warnings)
			}
			if diff := cmp.Diff(tc.want, w.sets); diff != "" {
				t.Errorf("registered (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("one that is refused is not", func(t *testing.T) {
		w := &registrar{}
		answer := fixtures.Review(t, registration(w), sidecarSetReview(t, strings.Replace(defaulted(t, betaManifest), `"app":"web"`, `"app":"not a value"`, 1), ""))
		if answer.Allowed || len(w.sets) != 0 {
			t.Errorf("allowed %v, registered %v", answer.Allowed, w.sets)
		}
	})
}

// If Register fails, the SidecarSet is allowed with a warning: the leader writes the webhook later.
func TestSidecarSetIsAdmittedThoughItIsNotRegistered(t *testing.T) {
	for want, w := range map[string]*registrar{
		"no API server answers":     {err: errors.New("no API server answers")},
		"context deadline exceeded": {hangs: true},
	} {
		t.Run(want, func(t *testing.T) {
			answer := fixtures.Review(t, registration(w), registerReview(t, betaManifest, "", false))
			if !answer.Allowed || len(answer.Warnings) != 1 || !strings.Contains(answer.Warnings[0], want) || !strings.Contains(answer.Warnings[0], "wait for the condition Ready") {
				t.Errorf("allowed %v, warnings %q", answer.Allowed, answer.Warnings)
			}
		})
	}
}

func registration(w *registrar) http.Handler {
	return sidecarsets.NewValidator(sidecarsets.ValidatorOptions{Stored: (&live{}).store, Reader: &live{}, Namespace: "ours", Registrar: w})
}

// registerReview is the review that the validating webhook gets.
func registerReview(t *testing.T, manifest, old string, dryRun bool) []byte {
	t.Helper()
	if old != "" {
		old = defaulted(t, old)
	}
	body := sidecarSetReview(t, defaulted(t, manifest), old)
	if dryRun {
		body = bytes.Replace(body, []byte(`"dryRun":false`), []byte(`"dryRun":true`), 1)
	}
	return body
}
