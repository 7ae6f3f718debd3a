package pods_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// catchingUp is a replica whose snapshot is behind until it catches up.
type catchingUp struct {
	current, newest *match.Snapshot
	doubt           bool
	err             error
	asked           int
}

func (c *catchingUp) injector() *pods.Injector {
	return newInjector(pods.Options{
		Snapshot: func() *match.Snapshot { return c.current },
		CatchUp: func(ctx context.Context) error {
			c.asked++
			if c.err != nil {
				return c.err
			}
			c.current = c.newest
			return ctx.Err()
		},
		Trusted:            func() bool { return !c.doubt },
		Namespaces:         &liveNamespaces{},
		ExcludedNamespaces: []string{"kube-system"},
	})
}

func behind(t *testing.T) *catchingUp {
	t.Helper()
	set := fixtures.SidecarSet("log").Select("app", "web").Container("log", "log:v1").Map()
	return &catchingUp{current: catalogOf(t), newest: catalogOf(t, set)}
}

func webReview(t *testing.T, change func(request map[string]any)) []byte {
	t.Helper()
	envelope := request(fixtures.Pod("web").Label("app", "web").Container("app", "app:v1").Obj())
	change(envelope["request"].(map[string]any))
	return fixtures.Encode(t, envelope)
}

func unchanged(map[string]any) {}

func TestInjectorCatchesUpOnTheFreshPathAndInDoubt(t *testing.T) {
	tests := map[string]struct {
		doubt, fresh bool
		change       func(request map[string]any)
		asked        int
		injected     bool
	}{
		"on /pods the snapshot decides":                 {asked: 0},
		"on /pods/fresh that after catching up does":    {fresh: true, asked: 1, injected: true},
		"in doubt /pods is like /pods/fresh":            {doubt: true, asked: 1, injected: true},
		"in doubt /pods/fresh catches up once":          {doubt: true, fresh: true, asked: 1, injected: true},
		"what is no Pod being created is not asked for": {fresh: true, change: func(r map[string]any) { r["operation"] = "UPDATE" }},
		"nor what is in an excluded namespace":          {doubt: true, change: func(r map[string]any) { r["namespace"] = "kube-system" }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := behind(t)
			c.doubt = tc.doubt
			injector := c.injector()
			handler := server.Handler(injector.Settled)
			if tc.fresh {
				handler = injector.Fresh
			}
			if tc.change == nil {
				tc.change = unchanged
			}
			answer := fixtures.Review(t, handler, webReview(t, tc.change))
			if !answer.Allowed || (len(answer.Patch) > 0) != tc.injected || c.asked != tc.asked {
				t.Errorf("allowed %v, patch %s; asked %d times", answer.Allowed, answer.Patch, c.asked)
			}
		})
	}
}

// Namespaces have a watch of their own. It may be behind that of SidecarSets after the
// replica was cut off, or if a user labels a Namespace and applies a SidecarSet at once.
func TestInjectorReadsNamespacesLiveWhereItCatchesUp(t *testing.T) {
	set := fixtures.SidecarSet("log").Select("app", "web").Container("log", "log:v1").
		Spec("namespaceSelector", map[string]any{"matchLabels": map[string]any{"env": "prod"}}).Map()
	catalog := match.Build(catalogOf(t, set).Programs(), map[string]labels.Set{"default": {}})
	live := &liveNamespaces{labels: map[string]labels.Set{"default": {"env": "prod"}}}
	injector := newInjector(pods.Options{Snapshot: func() *match.Snapshot { return catalog }, Namespaces: live})
	if answer := fixtures.Review(t, server.Handler(injector.Fresh), webReview(t, unchanged)); !answer.Allowed || len(answer.Patch) == 0 {
		t.Errorf("on /pods/fresh: allowed %v, patch %s", answer.Allowed, answer.Patch)
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
		"and does not if it has not":                   {[]map[string]any{inProd("log", "web")}, liveNamespaces{labels: test}, nil, 1},
		"but not where labels of the Pod leave it out": {[]map[string]any{inProd("log", "db")}, liveNamespaces{labels: prod}, nil, 0},
		"also where another SidecarSet selects it":     {[]map[string]any{inProd("log", "web"), everywhere}, liveNamespaces{labels: prod}, []string{"all", "log"}, 1},
		"and then injects what does select it":         {[]map[string]any{inProd("log", "web"), everywhere}, liveNamespaces{labels: test}, []string{"all"}, 1},
		"but not where nothing is left out":            {[]map[string]any{everywhere}, liveNamespaces{labels: prod}, []string{"all"}, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			answer := fixtures.Review(t, injector(catalogOf(t, tc.sets...), &tc.live), webReview(t, unchanged))
			if injected := answer.AuditAnnotations["injected"]; !answer.Allowed || injected != strings.Join(tc.injected, ",") || tc.live.reads != tc.reads {
				t.Errorf("allowed %v, injected %q after %d reads, want %q after %d", answer.Allowed, injected, tc.live.reads, tc.injected, tc.reads)
			}
		})
	}
}

// For each Pod, the labels of the Namespace count as they are when the Pod comes, whatever
// labels were read for earlier Pods.
func TestInjectorRemembersNoLabels(t *testing.T) {
	live := &liveNamespaces{labels: map[string]labels.Set{"default": {}}}
	injector := injector(catalogOf(t, inProd("log", "web")), live)
	for range 200 {
		if answer := fixtures.Review(t, injector, webReview(t, unchanged)); !answer.Allowed || answer.Patch != nil {
			t.Fatalf("before the label: allowed %v, patch %s", answer.Allowed, answer.Patch)
		}
	}
	live.labels["default"] = labels.Set{"env": "prod"}
	for i := range 200 {
		if answer := fixtures.Review(t, injector, webReview(t, unchanged)); !answer.Allowed || answer.Patch == nil {
			t.Fatalf("Pod %d behind the label: allowed %v, not injected", i, answer.Allowed)
		}
	}
}

// A failed look-up is never "not selected", whether or not another SidecarSet selects the Pod.
func TestInjectorRefusesIfTheNamespaceLookUpFails(t *testing.T) {
	everywhere := fixtures.SidecarSet("all").Select("app", "web").Container("all", "all:v1").Map()
	for name, sets := range map[string][]map[string]any{"alone": {inProd("log", "web")}, "beside another": {inProd("log", "web"), everywhere}} {
		t.Run(name, func(t *testing.T) {
			w := fixtures.Send(t, injector(catalogOf(t, sets...), &liveNamespaces{err: errors.New("connection refused")}), bytes.NewReader(webReview(t, unchanged)))
			if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
				t.Errorf("code %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
			}
			checkStatus(t, w, "cannot tell which SidecarSets select Pod default/web: reading the labels of Namespace default: connection refused")
		})
	}
}

// If the snapshot cannot catch up, the Pod is refused: a Pod without its sidecar is worse
// than a retry.
func TestInjectorRefusesIfTheSnapshotCannotCatchUp(t *testing.T) {
	c := behind(t)
	c.err = errors.New("etcd is away")
	injector := c.injector()
	w := fixtures.Send(t, server.Handler(injector.Fresh), bytes.NewReader(webReview(t, unchanged)))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
		t.Errorf("code %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
	}
	checkStatus(t, w, "etcd is away")
	if body := w.Body.String(); !strings.Contains(body, "cannot tell which SidecarSets select Pod default/web") {
		t.Errorf("the message does not name the Pod: %s", body)
	}
	// The next request may reuse the memory of this one. It is on /pods, so it asks nothing.
	if answer := fixtures.Review(t, server.Handler(injector.Settled), webReview(t, unchanged)); !answer.Allowed || c.asked != 1 {
		t.Errorf("allowed %v, asked %d times", answer.Allowed, c.asked)
	}
}

// Through another entry, the API server may have called a replica that injected a newer
// content a moment ago, as the Pod records. A replica with an older snapshot catches up
// before it replaces that content.
func TestInjectorCatchesUpBeforeItReplacesANewerContent(t *testing.T) {
	log := func(image string) map[string]any {
		return fixtures.SidecarSet("log").Select("app", "web").Container("log", image).Map()
	}
	old, newest := catalogOf(t, log("log:v1")), catalogOf(t, log("log:v2"))
	pod := fixtures.Pod("web").Label("app", "web").Container("app", "app:v1").Obj()
	carried := fixtures.Encode(t, request(fixtures.Patched(t, pod, fixtures.Review(t, injector(newest, nil), fixtures.Encode(t, request(pod))).Patch)))
	for name, tc := range map[string]struct {
		request []byte
		looks   int
		empty   bool
	}{
		"not where nothing is injected": {webReview(t, unchanged), 0, false},
		"and then leaves the newer one": {carried, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := &catchingUp{current: old, newest: newest}
			if answer := fixtures.Review(t, server.Handler(c.injector().Settled), tc.request); !answer.Allowed || (answer.Patch == nil) != tc.empty || c.asked != tc.looks {
				t.Errorf("allowed %v, looked %d times, patch %s", answer.Allowed, c.asked, answer.Patch)
			}
		})
	}
}
