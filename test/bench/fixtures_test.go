package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/injectors"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// namespace is where every Pod is created, and now is when.
const namespace = "shop"

var now = time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)

// kind is the result of an admission.
type kind string

const (
	matched  kind = "match" // one SidecarSet selects the Pod
	none     kind = "none"  // no SidecarSet selects the Pod
	repeated kind = "has"   // the Pod already has the operator's sidecars
)

// scenario is what is measured. Its size is in the name of a file in testdata, whose Pod is one that an
// API server sends to webhooks: an ordinary one of a Deployment, or one like those that platforms generate.
type scenario struct {
	size string
	kind kind
}

func (s scenario) String() string { return s.size + "/" + string(s.kind) }

var cases = []scenario{{"9KB", matched}, {"9KB", none}, {"9KB", repeated}, {"60KB", matched}, {"60KB", none}, {"60KB", repeated}}

// pod returns the Pod. ours gives it the sidecars that it has.
func (s scenario) pod(ours ours) []byte {
	pod := bytes.TrimSpace(must(os.ReadFile("testdata/pod-" + s.size + ".json")))
	switch s.kind {
	case none:
		pod = bytes.Replace(pod, []byte(`"app":"checkout"`), []byte(`"app":"unselected"`), 1)
	case repeated:
		pod = admit(ours, pod)
	}
	return pod
}

func (s scenario) review(ours ours) []byte { return review(s.pod(ours)) }

// sidecarSets returns count SidecarSets as the API server serves them: 70 % select by one label,
// 20 % by two, 10 % by a label and an expression. Only the one in the middle selects a Pod of testdata.
func sidecarSets(count int) []map[string]any {
	text := must(os.ReadFile("testdata/sidecarset.json"))
	sets := make([]map[string]any, count)
	for i := range sets {
		if err := utiljson.Unmarshal(text, &sets[i]); err != nil {
			panic(err)
		}
		name, app := fmt.Sprintf("sidecarset-%05d", i), fmt.Sprintf("app-%05d", i)
		if i == count/2 {
			app = "checkout"
		}
		selected := map[string]any{"matchLabels": map[string]any{"app": app}}
		switch {
		case i%10 == 9:
			selected["matchExpressions"] = []any{map[string]any{"key": "tier", "operator": "In", "values": []any{"backend", "frontend"}}}
		case i%10 >= 7:
			selected["matchLabels"].(map[string]any)["team"] = "payments"
		}
		metadata := sets[i]["metadata"].(map[string]any)
		metadata["name"], metadata["uid"] = name, "uid-"+name
		sets[i]["spec"].(map[string]any)["selector"] = selected
		sets[i]["status"].(map[string]any)["latestRevision"] = name + "-6565dfc8d5"
	}
	return sets
}

// ours is the operator's own handler.
type ours struct{ *pods.Injector }

func newOurs(sets []map[string]any) ours {
	store := snapshot(compile(sets))
	return ours{pods.NewInjector(pods.Options{
		Snapshot:           func() *match.Snapshot { return store },
		ExcludedNamespaces: []string{"kube-system", "sidecarset-system"},
		Ensure:             func(context.Context, int, uint64, labels.Labels) error { return nil },
		OtherInjector:      func() *injectors.Injector { return nil },
		RecordEvent:        func(events.Event) {},
		Clock:              clocktesting.NewFakePassiveClock(now),
	})}
}

func compile(sets []map[string]any) (compiled []*inject.Compiled) {
	for _, set := range sets {
		compiled = append(compiled, must(inject.Compile(set)))
	}
	return compiled
}

func snapshot(compiled []*inject.Compiled) *match.Snapshot {
	return match.Build(compiled, map[string]labels.Set{namespace: {"kubernetes.io/metadata.name": namespace}})
}

// bodies are buffers for request bodies, which are used again, as in the webhook server.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// ServeHTTP reads the body and answers, without the webhook server's limits.
func (o ours) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := bodies.Get().(*bytes.Buffer)
	defer bodies.Put(body)
	body.Reset()
	if _, err := body.ReadFrom(r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	server.Handler(o.Handle).Answer(r.Context(), w, server.Request{Body: body.Bytes()})
}

// podsPath is that of a Pod webhook. The replica holds what it requires.
var podsPath = podwebhook.PodsPath(3, 12_345_678)

// Handle answers a request as one by a webhook for Pods, whatever its path is.
func (o ours) Handle(ctx context.Context, w http.ResponseWriter, r server.Request) error {
	r.Path = podsPath
	return o.Injector.Handle(ctx, w, r)
}

// call returns a function that sends one body to a handler, in memory, with almost no work of its own.
func call(handler http.Handler, body []byte) func() {
	var reader bytes.Reader
	answer := answer{header: http.Header{}}
	request := http.Request{Method: http.MethodPost, Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(body))}
	return func() {
		reader.Reset(body)
		request.Body = io.NopCloser(&reader)
		clear(answer.header)
		answer.body.Reset()
		handler.ServeHTTP(&answer, &request)
	}
}

// answer is a ResponseWriter in memory.
type answer struct {
	header http.Header
	body   bytes.Buffer
}

func (a *answer) Header() http.Header            { return a.header }
func (a *answer) Write(data []byte) (int, error) { return a.body.Write(data) }
func (a *answer) WriteHeader(int)                {}

// admit sends the creation of a Pod to a handler, and returns the Pod after its patch.
func admit(handler http.Handler, pod []byte) []byte {
	recorder, request := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(review(pod)))
	request.Header.Set("Content-Type", "application/json")
	handler.ServeHTTP(recorder, request)
	response := decoded[admissionv1.AdmissionReview](recorder.Body.Bytes()).Response
	if response == nil || !response.Allowed {
		panic("the Pod was not allowed: " + recorder.Body.String())
	}
	if len(response.Patch) == 0 {
		return pod
	}
	return must(must(jsonpatch.DecodePatch(response.Patch)).Apply(pod))
}

// review returns the AdmissionReview that an API server sends for the creation of a Pod.
func review(pod []byte) []byte {
	return must(json.Marshal(&admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{Kind: "AdmissionReview", APIVersion: "admission.k8s.io/v1"},
		Request: &admissionv1.AdmissionRequest{
			UID:             "3f0f3a5e-8c6e-4d5b-9f0a-2f1e0d9c8b7a",
			Kind:            metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
			Resource:        metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			RequestKind:     &metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
			RequestResource: &metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Namespace:       namespace,
			Operation:       admissionv1.Create,
			Object:          runtime.RawExtension{Raw: pod},
			DryRun:          new(false),
			Options:         runtime.RawExtension{Raw: []byte(`{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"}`)},
		},
	}))
}

func decoded[T any](text []byte) *T {
	value := new(T)
	if err := json.Unmarshal(text, value); err != nil {
		panic(fmt.Sprintf("%v in %s", err, strings.TrimSpace(string(text))))
	}
	return value
}

// must is for fixtures, which are constant.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
