package webhooks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks"
)

type liveNamespaces struct {
	client.Reader
	labels map[string]labels.Set
	err    error
	reads  int
	read   func() // if any, what happens then
}

func (l *liveNamespaces) Get(ctx context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	l.reads++
	if l.read != nil {
		l.read()
	}
	if _, bounded := ctx.Deadline(); !bounded {
		return errors.New("a live read without a deadline")
	}
	if _, partial := object.(*metav1.PartialObjectMetadata); !partial {
		return fmt.Errorf("a live read of all of a %T", object)
	}
	if l.err != nil {
		return l.err
	}
	set, ok := l.labels[key.Name]
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, key.Name)
	}
	object.SetLabels(set)
	return nil
}

// injector returns a handler that decides by catalog and excludes kube-system.
func injector(catalog *match.Snapshot, live *liveNamespaces) http.Handler {
	return webhooks.NewPodInjector(webhooks.PodInjectorOptions{
		Catalog:            func() *match.Snapshot { return catalog },
		Namespaces:         live,
		ExcludedNamespaces: []string{"kube-system"},
		Clock:              clocktesting.NewFakePassiveClock(fixtures.Now),
	})
}

// catalogOf compiles SidecarSets; the namespace default is known.
func catalogOf(t testing.TB, sets ...map[string]any) *match.Snapshot {
	t.Helper()
	var programs []*inject.Program
	for _, set := range sets {
		programs = append(programs, fixtures.Program(t, set))
	}
	return match.Build(programs, map[string]labels.Set{"default": {"kubernetes.io/metadata.name": "default"}})
}

// request is an AdmissionReview that a test changes as it needs.
func request(pod map[string]any) map[string]any {
	return map[string]any{
		"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
		"request": map[string]any{
			"uid":       "uid-1",
			"kind":      map[string]any{"group": "", "version": "v1", "kind": "Pod"},
			"resource":  map[string]any{"group": "", "version": "v1", "resource": "pods"},
			"namespace": "default",
			"operation": "CREATE",
			"object":    pod,
			"oldObject": nil,
			"dryRun":    false,
		},
	}
}

func encode(t testing.TB, value any) []byte {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatalf("encoding: %v", err)
	}
	return data
}

func send(handler http.Handler, body io.Reader) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/pods", body)
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

// review sends an AdmissionReview and reads the answer as the API server would.
func review(t testing.TB, handler http.Handler, body []byte) *admissionv1.AdmissionResponse {
	t.Helper()
	w := send(handler, bytes.NewReader(body))
	if w.Code != http.StatusOK {
		t.Fatalf("got %d %s", w.Code, w.Body)
	}
	return decodeAnswer(t, w)
}

func decodeAnswer(t testing.TB, w *httptest.ResponseRecorder) *admissionv1.AdmissionResponse {
	t.Helper()
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatalf("decoding the answer %s: %v", w.Body, err)
	}
	if answer.Kind != "AdmissionReview" || answer.APIVersion != "admission.k8s.io/v1" || answer.Response == nil {
		t.Fatalf("the answer is no AdmissionReview: %s", w.Body)
	}
	if (answer.Response.Patch == nil) != (answer.Response.PatchType == nil) {
		t.Fatalf("patch and patchType have to come together: %s", w.Body)
	}
	return answer.Response
}
