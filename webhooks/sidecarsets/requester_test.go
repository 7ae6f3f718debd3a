package sidecarsets_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/requester"
	"github.com/sidecarset/operator/webhooks/sidecarsets"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// rights grants the same rights to every user, as "verb resource namespace".
type rights struct {
	granted []string
	err     error

	mu    sync.Mutex
	asked []string
}

func (r *rights) Allowed(_ context.Context, user authenticationv1.UserInfo, q requester.Question) (bool, error) {
	resource := q.Resource
	question := strings.TrimSpace(q.Verb + " " + resource + " " + q.Namespace)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, user.Username+": "+question)
	return slices.Contains(r.granted, question), r.err
}

// checked returns the validating webhook with a RequesterCheck.
func checked(mode sidecarsets.RequesterMode, access *rights, registry prometheus.Registerer, recorded ...appsv1.ControllerRevision) http.Handler {
	reader := &live{revisions: recorded}
	none := match.Build(nil, map[string]labels.Set{"team-a": {"team": "a"}, "team-b": {"team": "b"}})
	return sidecarsets.NewValidator(sidecarsets.ValidatorOptions{
		Stored: reader.store, Reader: reader, Namespace: "ours",
		Requester: sidecarsets.NewRequesterCheck(sidecarsets.RequesterCheckOptions{
			Mode: mode, Access: access, Store: func() *match.Snapshot { return none }, ExcludedNamespaces: []string{"ours"}, Registry: registry,
			Revisions: snapshot.RecordedRevisions{Reader: reader, Namespace: "ours"},
		}),
	})
}

const inTeamA = betaManifest + "  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: team-a}}\n"

func TestRequesterCheck(t *testing.T) {
	const problem = `user "kubernetes-admin" may not create Pods in team-a, where this SidecarSet injects: ` +
		`leave it out in spec.namespaceSelector, or have the right to create Pods granted there`
	tests := map[string]struct {
		mode    sidecarsets.RequesterMode
		granted string
		err     error
		allowed bool
		code    int32
		reason  metav1.StatusReason
		says    string // the warning, or the refusal
		result  string
	}{
		"off asks no API server":           {mode: sidecarsets.RequesterOff, allowed: true},
		"warn warns the requester":         {mode: sidecarsets.RequesterWarn, allowed: true, says: problem, result: "warned"},
		"enforce denies":                   {mode: sidecarsets.RequesterEnforce, code: 403, reason: metav1.StatusReasonForbidden, says: `sidecarsets.apps.kruise.io "log" is forbidden: ` + problem, result: "denied"},
		"enforce admits who may":           {mode: sidecarsets.RequesterEnforce, granted: "create pods team-a", allowed: true, result: "allowed"},
		"warn is silent to who may":        {mode: sidecarsets.RequesterWarn, granted: "create pods", allowed: true, result: "allowed"},
		"a failure is a warning where so":  {mode: sidecarsets.RequesterWarn, err: errors.New("no answer"), allowed: true, says: `could not look up whether user "kubernetes-admin" may inject these sidecars: no answer`, result: "error"},
		"a failure is an error, not a 403": {mode: sidecarsets.RequesterEnforce, err: errors.New("no answer"), code: 500, reason: metav1.StatusReasonInternalError, says: `looking up whether user "kubernetes-admin" may inject these sidecars, try again: no answer`, result: "error"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			access := &rights{granted: []string{tc.granted}, err: tc.err}
			answer := fixtures.Review(t, checked(tc.mode, access, registry), sidecarSetReview(t, defaulted(t, inTeamA), ""))
			if answer.Allowed != tc.allowed {
				t.Fatalf("allowed is %v: %v", answer.Allowed, answer.Result)
			}
			said := strings.Join(answer.Warnings, "\n")
			if !tc.allowed {
				said = answer.Result.Message
				if answer.Result.Code != tc.code || answer.Result.Reason != tc.reason {
					t.Errorf("code %d, reason %q, want %d and %q", answer.Result.Code, answer.Result.Reason, tc.code, tc.reason)
				}
			}
			if said != tc.says {
				t.Errorf("it says %q, want %q", said, tc.says)
			}
			if tc.mode == sidecarsets.RequesterOff && len(access.asked) > 0 {
				t.Errorf("it asked %v", access.asked)
			}
			if tc.result != "" {
				expectOne(t, registry, tc.result)
			}
		})
	}
}

func expectOne(t *testing.T, registry *prometheus.Registry, result string) {
	t.Helper()
	want := map[string]float64{"allowed": 0, "warned": 0, "denied": 0, "error": 0}
	want[result] = 1
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "sidecarset_requester_checks_total" {
		t.Fatalf("gathered %v, %v", families, err)
	}
	counted := map[string]float64{}
	for _, metric := range families[0].GetMetric() {
		counted[metric.GetLabel()[0].GetValue()] = metric.GetCounter().GetValue()
	}
	if diff := cmp.Diff(want, counted); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

func TestRequesterCheckOfUpdates(t *testing.T) {
	stored := defaulted(t, inTeamA)
	deleting := strings.Replace(inTeamA, "{name: log}", "{name: log, deletionTimestamp: \"2026-01-01T00:00:00Z\", finalizers: [a/b]}", 1)
	tests := map[string]struct {
		manifest, old string
		refused       bool
	}{
		"metadata takes no right":         {defaulted(t, strings.Replace(inTeamA, "{name: log}", "{name: log, labels: {a: b}, finalizers: [a/b]}", 1)), stored, false},
		"dropping a finalizer takes none": {defaulted(t, strings.Replace(deleting, "[a/b]", "[]", 1)), defaulted(t, deleting), false},
		"another image takes the whole":   {defaulted(t, strings.Replace(inTeamA, "1.36", "1.37", 1)), stored, true},
		"the same object in v1alpha1":     {defaulted(t, strings.Replace(betaManifest, "v1beta1", "v1alpha1", 1)+"  namespace: team-a\n"), stored, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			access := &rights{}
			answer := fixtures.Review(t, checked(sidecarsets.RequesterEnforce, access, nil), sidecarSetReview(t, tc.manifest, tc.old))
			if answer.Allowed == tc.refused {
				t.Errorf("allowed is %v: %v", answer.Allowed, answer.Result)
			}
			if asked := len(access.asked) > 0; asked != tc.refused {
				t.Errorf("it asked %v", access.asked)
			}
		})
	}
}
