package pods_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// behind is a replica whose snapshot lacks the newest revision of SidecarSet log until it is asked
// to know it.
type behind struct {
	current, newest *match.Snapshot
	err             error
	asked           []string
}

func (b *behind) know(what string) error {
	b.asked = append(b.asked, what)
	if b.err == nil {
		b.current = b.newest
	}
	return b.err
}

func (b *behind) injector() paths {
	return newInjector(pods.Options{
		Snapshot: func() *match.Snapshot { return b.current },
		Ensure: func(_ context.Context, shard int, number uint64, pod labels.Labels) error {
			return b.know(fmt.Sprintf("shard %d up to %d for app=%s", shard, number, pod.Get("app")))
		},
		Know:               func(_ context.Context, names []string) error { return b.know(strings.Join(names, ",")) },
		Namespaces:         &liveNamespaces{},
		ExcludedNamespaces: []string{"kube-system"},
	})
}

func webReview(t testing.TB, change func(request map[string]any)) []byte {
	t.Helper()
	envelope := request(fixtures.Pod("web").Label("app", "web").Container("app", "app:v1").Obj())
	change(envelope["request"].(map[string]any))
	return fixtures.Encode(t, envelope)
}

func unchanged(map[string]any) {}

func TestInjectorKnowsWhatTheCallRequires(t *testing.T) {
	const required = "shard 3 up to 57 for app=web"
	set := fixtures.SidecarSet("log").Select("app", "web").Container("log", "log:v1").Map()
	tests := map[string]struct {
		static   bool
		change   func(request map[string]any)
		asked    []string
		injected bool
	}{
		"by a shard":                                      {change: unchanged, asked: []string{required}, injected: true},
		"not by the webhook of an administrator":          {change: unchanged, static: true},
		"not for what is no Pod being created":            {change: func(r map[string]any) { r["operation"] = "UPDATE" }},
		"not for what is in a namespace that is excluded": {change: func(r map[string]any) { r["namespace"] = "kube-system" }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := &behind{current: storeOf(t), newest: storeOf(t, set)}
			handler := server.Handler(b.injector().shard)
			if tc.static {
				handler = b.injector().static
			}
			answer := fixtures.Review(t, handler, webReview(t, tc.change))
			if !answer.Allowed || (len(answer.Patch) > 0) != tc.injected || !slices.Equal(b.asked, tc.asked) {
				t.Errorf("allowed %v, patch %s; asked for %q", answer.Allowed, answer.Patch, b.asked)
			}
		})
	}
}

// A path that is none of the webhooks' may be of another version of the operator. What it
// requires is not known.
func TestInjectorRefusesOtherPaths(t *testing.T) {
	injector := newInjector(pods.Options{Snapshot: func() *match.Snapshot { return storeOf(t) }})
	for _, path := range []string{"/pods/", "/pods/3", "/pods/16/57", "/pods/3/057", "/pods/3/57/log", "/pods/fresh", "/"} {
		w := fixtures.Send(t, server.Handler(func(ctx context.Context, w http.ResponseWriter, r server.Request) error {
			r.Path = path
			return injector.Handle(ctx, w, r)
		}), bytes.NewReader(webReview(t, unchanged)))
		if w.Code != http.StatusBadRequest {
			t.Errorf("%s: code %d", path, w.Code)
		}
		checkStatus(t, w, "no Pod webhook has it")
	}
}

// inProd is a SidecarSet for Pods of Namespaces with the label env=prod.
func inProd(name, app string) map[string]any {
	return fixtures.SidecarSet(name).Select("app", app).Container(name, name+":v1").
		Spec("namespaceSelector", map[string]any{"matchLabels": map[string]any{"env": "prod"}}).Map()
}

// API servers send us the Pods that are selected by the labels that they know. If only the
// labels of the Namespace leave a Pod out, the Namespace may have been labelled a moment ago.
func TestInjectorLooksAgainAtARelabelledNamespace(t *testing.T) {
	everywhere := fixtures.SidecarSet("all").Select("app", "web").Container("all", "all:v1").Map()
	prod := map[string]labels.Set{"default": {"env": "prod"}}
	test := map[string]labels.Set{"default": {}}
	tests := map[string]struct {
		sets     []map[string]any
		live     liveNamespaces
		injected []string
		reads    int
	}{
		"and injects if it has the label now":          {[]map[string]any{inProd("log", "web")}, liveNamespaces{labels: prod}, []string{"log"}, 1},
		"but not where labels of the Pod leave it out": {[]map[string]any{inProd("log", "db")}, liveNamespaces{labels: prod}, nil, 0},
		"also where another SidecarSet selects it":     {[]map[string]any{inProd("log", "web"), everywhere}, liveNamespaces{labels: prod}, []string{"all", "log"}, 1},
		"and then injects what does select it":         {[]map[string]any{inProd("log", "web"), everywhere}, liveNamespaces{labels: test}, []string{"all"}, 1},
		"but not where nothing is left out":            {[]map[string]any{everywhere}, liveNamespaces{labels: prod}, []string{"all"}, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			answer := fixtures.Review(t, injector(storeOf(t, tc.sets...), &tc.live), webReview(t, unchanged))
			if injected := answer.AuditAnnotations["injected"]; !answer.Allowed || injected != strings.Join(tc.injected, ",") || tc.live.reads != tc.reads {
				t.Errorf("allowed %v, injected %q after %d reads, want %q after %d", answer.Allowed, injected, tc.live.reads, tc.injected, tc.reads)
			}
		})
	}
}

// If the replica cannot know what is required, the Pod is refused: a Pod without its sidecar is
// worse than a retry.
func TestInjectorRefusesIfItCannotKnow(t *testing.T) {
	b := &behind{current: storeOf(t), err: errors.New("etcd is away")}
	w := fixtures.Send(t, server.Handler(b.injector().shard), bytes.NewReader(webReview(t, unchanged)))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
		t.Errorf("code %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
	}
	checkStatus(t, w, "cannot tell which SidecarSets select Pod default/web: etcd is away")
	// The next request may reuse the memory of this one.
	if answer := fixtures.Review(t, server.Handler(b.injector().static), webReview(t, unchanged)); !answer.Allowed {
		t.Error("the next one is refused")
	}
}

// By a webhook of another shard, the API server may have called a replica that injected a newer
// revision a moment ago, as the Pod records. A replica with an older snapshot asks for that
// SidecarSet before it replaces the sidecars, once for each request.
func TestInjectorKnowsWhatItReplaces(t *testing.T) {
	log := func(image string) map[string]any {
		return fixtures.SidecarSet("log").Select("app", "web").Container("log", image).Map()
	}
	old, newest := storeOf(t, log("log:v1")), storeOf(t, log("log:v2"))
	pod := fixtures.Pod("web").Label("app", "web").Container("app", "app:v1").Obj()
	carrying := func(image string) []byte {
		patch := fixtures.Review(t, injector(storeOf(t, log(image)), nil), fixtures.Encode(t, request(pod))).Patch
		return fixtures.Encode(t, request(fixtures.Patched(t, pod, patch)))
	}
	tests := map[string]struct {
		request []byte
		asked   []string
		empty   bool
	}{
		"not where nothing is injected":                 {webReview(t, unchanged), nil, false},
		"not where the same is injected":                {carrying("log:v1"), nil, true},
		"and leaves the newer revision":                 {carrying("log:v2"), []string{"log"}, true},
		"and replaces what is older than what it knows": {carrying("log:v0"), []string{"log"}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := &behind{current: old, newest: newest}
			answer := fixtures.Review(t, server.Handler(b.injector().static), tc.request)
			if !answer.Allowed || (answer.Patch == nil) != tc.empty || !slices.Equal(b.asked, tc.asked) {
				t.Errorf("allowed %v, asked for %q, patch %s", answer.Allowed, b.asked, answer.Patch)
			}
		})
	}
	b := &behind{current: old, err: errors.New("etcd is away")}
	w := fixtures.Send(t, server.Handler(b.injector().static), bytes.NewReader(carrying("log:v2")))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("if it cannot know, the code is %d", w.Code)
	}
}
