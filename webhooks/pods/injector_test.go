package pods_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// For every golden case, the handler injects what the engine plans.
func TestInjectorEqualsGoldenFiles(t *testing.T) {
	fixtures.RunCases(t, func(t *testing.T, c *fixtures.Case) fixtures.Outcome {
		envelope := request(c.Pod)
		envelope["request"].(map[string]any)["namespace"] = c.Namespace
		answer := fixtures.Review(t, injector(c.Snapshot(t), &liveNamespaces{labels: c.Namespaces}), fixtures.Encode(t, envelope))
		if answer.UID != "uid-1" {
			t.Errorf("uid = %q", answer.UID)
		}
		if !answer.Allowed {
			if answer.Result.Code != http.StatusUnprocessableEntity {
				t.Errorf("code = %d, want 422", answer.Result.Code)
			}
			_, message, _ := strings.Cut(answer.Result.Message, ": ") // before it, the handler names the Pod
			return fixtures.Outcome{Refused: message}
		}
		return fixtures.Outcome{Pod: fixtures.Patched(t, c.Pod, answer.Patch)}
	})
}

func TestInjectorSaysWhatItInjected(t *testing.T) {
	sets := []map[string]any{
		fixtures.SidecarSet("b").Select("app", "web").Container("b", "b:v1").Map(),
		fixtures.SidecarSet("a").Select("app", "web").Container("a", "a:v1").Map(),
	}
	answer := fixtures.Review(t, injector(storeOf(t, sets...), nil), fixtures.Encode(t, request(fixtures.Pod("web").Label("app", "web").Container("app", "app:v1").Obj())))
	if diff := cmp.Diff(map[string]string{"injected": "a,b"}, answer.AuditAnnotations); diff != "" {
		t.Errorf("audit annotations (-want +got):\n%s", diff)
	}
	if len(answer.Warnings) != 0 {
		t.Errorf("warnings = %q", answer.Warnings)
	}
}

// The Injector allows, without a change, every request that does not create a Pod in a
// namespace of users, and the kubelet's mirror Pods.
func TestInjectorAllowsOtherRequestsUnchanged(t *testing.T) {
	store := storeOf(t, fixtures.SidecarSet("log").Select("app", "web").Container("log", "log:v1").Map())
	in := func(r map[string]any) map[string]any { return r["request"].(map[string]any) }
	object := func(r map[string]any) map[string]any { return in(r)["object"].(map[string]any) }
	tests := map[string]func(r map[string]any){
		"a Pod that nothing selects": func(r map[string]any) {
			object(r)["metadata"].(map[string]any)["labels"] = map[string]any{"app": "db"}
		},
		"a Pod without labels": func(r map[string]any) { delete(object(r)["metadata"].(map[string]any), "labels") },
		"an update":            func(r map[string]any) { in(r)["operation"] = "UPDATE" },
		"a deletion":           func(r map[string]any) { in(r)["operation"] = "DELETE"; in(r)["object"] = nil },
		"a subresource":        func(r map[string]any) { in(r)["subResource"] = "binding" },
		"another resource": func(r map[string]any) {
			in(r)["resource"] = map[string]any{"group": "", "version": "v1", "resource": "services"}
		},
		"pods of another group": func(r map[string]any) {
			in(r)["resource"] = map[string]any{"group": "metrics.k8s.io", "version": "v1beta1", "resource": "pods"}
		},
		"a cluster-scoped resource": func(r map[string]any) {
			in(r)["resource"] = map[string]any{"group": "", "version": "v1", "resource": "nodes"}
			delete(in(r), "namespace")
		},
		"an excluded namespace": func(r map[string]any) { in(r)["namespace"] = "kube-system" },
		"a mirror Pod": func(r map[string]any) {
			object(r)["metadata"].(map[string]any)["annotations"] = map[string]any{"kubernetes.io/config.mirror": "abc"}
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			envelope := request(fixtures.Pod("web").Label("app", "web").Container("app", "app:v1").Obj())
			change(envelope)
			answer := fixtures.Review(t, injector(store, nil), fixtures.Encode(t, envelope))
			if !answer.Allowed || answer.Patch != nil || answer.UID != "uid-1" {
				t.Errorf("got allowed=%t patch=%s uid=%s", answer.Allowed, answer.Patch, answer.UID)
			}
		})
	}
}

// T14: a failed look-up is an error, never "no match".
func TestInjectorReadsUnknownNamespacesLive(t *testing.T) {
	byLabel := fixtures.SidecarSet("log").Select("app", "web").Container("log", "log:v1").
		Spec("namespaceSelector", map[string]any{"matchLabels": map[string]any{"env": "prod"}}).Map()
	byName := fixtures.SidecarSet("log").Select("app", "web").Container("log", "log:v1").InNamespace("young").Map()
	tests := map[string]struct {
		set      map[string]any
		live     liveNamespaces
		wantCode int
		injected bool
		reads    int
	}{
		"and injects if its labels match":           {byLabel, liveNamespaces{labels: map[string]labels.Set{"young": {"env": "prod"}}}, 200, true, 1},
		"and does not if they do not":               {byLabel, liveNamespaces{labels: map[string]labels.Set{"young": {"env": "test"}}}, 200, false, 1},
		"and fails if there is no such namespace":   {byLabel, liveNamespaces{}, 503, false, 1},
		"and fails if the API server cannot answer": {byLabel, liveNamespaces{err: errors.New("connection refused")}, 503, false, 1},
		"but not if its name is enough":             {byName, liveNamespaces{err: errors.New("connection refused")}, 200, true, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			envelope := request(fixtures.Pod("web").Label("app", "web").Container("app", "app:v1").Obj())
			envelope["request"].(map[string]any)["namespace"] = "young"
			w := fixtures.Send(t, injector(storeOf(t, tc.set), &tc.live), bytes.NewReader(fixtures.Encode(t, envelope)))
			if w.Code != tc.wantCode || tc.live.reads != tc.reads {
				t.Fatalf("got %d after %d reads, want %d after %d: %s", w.Code, tc.live.reads, tc.wantCode, tc.reads, w.Body)
			}
			if w.Code != http.StatusOK {
				checkStatus(t, w, `reading the labels of Namespace young`)
				return
			}
			if injected := fixtures.DecodeReview(t, w).Patch != nil; injected != tc.injected {
				t.Errorf("injected = %t, want %t", injected, tc.injected)
			}
		})
	}
}

// checkStatus expects a Status with this message, which the API server shows to its user.
func checkStatus(t testing.TB, w *httptest.ResponseRecorder, message string) {
	t.Helper()
	var status metav1.Status
	if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil {
		t.Fatalf("decoding %s: %v", w.Body, err)
	}
	if status.Kind != "Status" || status.Status != metav1.StatusFailure || int(status.Code) != w.Code || status.Reason == "" {
		t.Errorf("status = %+v, HTTP %d", status, w.Code)
	}
	if len(status.Message) > 1000 {
		t.Errorf("the message has %d bytes", len(status.Message))
	}
	if !strings.Contains(status.Message, message) {
		t.Errorf("message %q does not say %q", status.Message, message)
	}
}

func TestInjectorWaitsForTheStore(t *testing.T) {
	w := fixtures.Send(t, injector(nil, nil), bytes.NewReader(fixtures.Encode(t, request(fixtures.Pod("web").Obj()))))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
		t.Errorf("got %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
	}
	checkStatus(t, w, "has not read all SidecarSets yet")
}

func TestInjectorRefusesRequestsThatAreNone(t *testing.T) {
	valid := string(fixtures.Encode(t, request(fixtures.Pod("web").Obj())))
	post := func(body string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, "/pods", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		return r
	}
	with := func(r *http.Request, change func(*http.Request)) *http.Request { change(r); return r }
	tests := map[string]struct {
		request *http.Request
		code    int
		message string
	}{
		"a body that is too long":    {post(strings.Repeat(" ", server.MaxAdmissionBytes) + valid), 413, "longer than 7340032 bytes"},
		"a body that breaks off":     {with(post(""), func(r *http.Request) { r.Body = io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF)) }), 400, "reading the request body"},
		"no body":                    {post(""), 400, "body is empty"},
		"a list":                     {post("[]"), 400, "must be an object, not an array"},
		"a ConversionReview":         {post(strings.Replace(valid, `"kind":"AdmissionReview"`, `"kind":"ConversionReview"`, 1)), 400, `not kind "ConversionReview"`},
		"a kind of any length":       {post(strings.Replace(valid, `"kind":"AdmissionReview"`, `"kind":"`+strings.Repeat("x", 1<<20)+`"`, 1)), 400, "malformed"},
		"an older version":           {post(strings.Replace(valid, `admission.k8s.io/v1"`, `admission.k8s.io/v1beta1"`, 1)), 400, `admission.k8s.io/v1beta1`},
		"no request":                 {post(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`), 400, "request is missing"},
		"no uid":                     {post(strings.Replace(valid, `"uid":"uid-1"`, `"uid":""`, 1)), 400, "request.uid is missing"},
		"nesting beyond all measure": {post(`{"kind":"AdmissionReview","x":` + strings.Repeat("[", 20_000)), 400, "malformed"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			injector(storeOf(t), nil).ServeHTTP(w, tc.request)
			if w.Code != tc.code {
				t.Errorf("code = %d, want %d", w.Code, tc.code)
			}
			checkStatus(t, w, tc.message)
		})
	}
}

// If the uid is known, the answer is an AdmissionReview, and the API server shows its message
// to the user who creates the Pod.
func TestInjectorDeniesMalformedRequests(t *testing.T) {
	head := `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"uid-1",` +
		`"resource":{"group":"","version":"v1","resource":"pods"},`
	pod := func(object string) string {
		return head + `"namespace":"default","operation":"CREATE","object":` + object + `}}`
	}
	const selected = `"metadata":{"labels":{"app":"web"}}`
	tests := map[string]struct{ body, message string }{
		"no namespace":                       {head + `"operation":"CREATE","object":{"metadata":{}}}}`, "request.namespace is missing"},
		"no object":                          {head + `"namespace":"default","operation":"CREATE"}}`, "request.object is missing"},
		"no metadata":                        {pod(`{}`), "request.object.metadata is missing"},
		"a selected Pod without a spec":      {pod(`{` + selected + `}`), "request.object.spec is missing"},
		"a label that is a number":           {pod(`{"metadata":{"labels":{"app":1}}}`), "request.object.metadata.labels.app must be a string, not a number"},
		"a label that is present twice":      {pod(`{"metadata":{"labels":{"app":"a","app":"b"}}}`), "request.object.metadata.labels.app is present twice"},
		"a name written twice, once escaped": {pod(`{` + selected + `,"spec":{},"\u0073pec":{}}`), "is present twice"},
		"containers that are an object":      {pod(`{` + selected + `,"spec":{"containers":{}}}`), "request.object.spec.containers must be an array, not an object"},
		"garbage in a value stepped over":    {pod(`{` + selected + `,"spec":{"containers":[{"name":"a","ports":[tru]}]}}`), "malformed"},
		"bytes that are no UTF-8":            {pod("{" + selected + `,"spec":{"hostname":"` + "\xff" + `"}}`), "malformed"},
		"more after the document":            {pod(`{`+selected+`,"spec":{}}`) + `{}`, "more data follows"},
		"nesting beyond all measure":         {pod(`{` + selected + `,"spec":` + strings.Repeat(`{"a":`, 20_000)), "malformed"},
	}
	store := storeOf(t, fixtures.SidecarSet("log").Select("app", "web").Container("log", "log:v1").Map())
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			answer := fixtures.Review(t, injector(store, nil), []byte(tc.body))
			if answer.Allowed || answer.UID != "uid-1" || answer.Result == nil || answer.Result.Code != http.StatusBadRequest {
				t.Fatalf("got %+v", answer)
			}
			if !strings.Contains(answer.Result.Message, tc.message) {
				t.Errorf("message %q does not say %q", answer.Result.Message, tc.message)
			}
		})
	}
}

// An API server that drops spec.resources takes a Pod whose sidecar exceeds them.
func TestResourcesThatAPIServersDropRefuseNoPod(t *testing.T) {
	large := map[string]any{"requests": map[string]any{"cpu": "2"}}
	set := fixtures.SidecarSet("log").Select("app", "web").Container("log", "log:v1").With("resources", large)
	pod := fixtures.Pod("web").Label("app", "web").Container("app", "app:v1").Spec("resources", map[string]any{"requests": map[string]any{"cpu": "1"}})
	for _, keeps := range []bool{true, false} {
		store := storeOf(t, set.Map())
		handler := server.Handler(newInjector(pods.Options{
			Snapshot:          func() *match.Snapshot { return store },
			KeepsPodResources: func(context.Context) bool { return keeps },
		}).static)
		answer := fixtures.Review(t, handler, fixtures.Encode(t, request(pod.Obj())))
		if answer.Allowed == keeps || answer.Allowed && len(answer.Patch) == 0 {
			t.Errorf("an API server that keeps them (%v): %+v", keeps, answer)
		}
	}
}
