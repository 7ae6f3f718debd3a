package webhooks_test

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
	"github.com/sidecarset/operator/webhooks"
)

// catchingUp is a replica whose snapshot is empty until it is asked to be fresh.
type catchingUp struct {
	current, newest *match.Catalog
	doubt           bool
	err             error
	asked           int
}

func (c *catchingUp) injector() *webhooks.PodInjector {
	return webhooks.NewPodInjector(webhooks.PodInjectorOptions{
		Catalog: func() *match.Catalog { return c.current },
		Fresh: func(ctx context.Context) error {
			c.asked++
			if c.err != nil {
				return c.err
			}
			c.current = c.newest
			return ctx.Err()
		},
		Doubt:              func() bool { return c.doubt },
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
	return encode(t, envelope)
}

func unchanged(map[string]any) {}

func TestPodInjectorCatchesUpWhereItHasTo(t *testing.T) {
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
			handler := http.Handler(injector)
			if tc.fresh {
				handler = injector.Fresh()
			}
			if tc.change == nil {
				tc.change = unchanged
			}
			answer := review(t, handler, webReview(t, tc.change))
			if !answer.Allowed || (len(answer.Patch) > 0) != tc.injected || c.asked != tc.asked {
				t.Errorf("allowed %v, patch %s; asked %d times", answer.Allowed, answer.Patch, c.asked)
			}
		})
	}
}

// Namespaces are watched apart from SidecarSets. A replica that was cut off, or a
// user who labels a Namespace and applies a SidecarSet at once, is ahead of that.
func TestPodInjectorReadsNamespacesLiveWhereItCatchesUp(t *testing.T) {
	set := fixtures.SidecarSet("log").Select("app", "web").Container("log", "log:v1").
		Spec("namespaceSelector", map[string]any{"matchLabels": map[string]any{"env": "prod"}}).Map()
	catalog := match.Build(catalogOf(t, set).Programs(), map[string]labels.Set{"default": {}})
	live := &liveNamespaces{labels: map[string]labels.Set{"default": {"env": "prod"}}}
	injector := webhooks.NewPodInjector(webhooks.PodInjectorOptions{Catalog: func() *match.Catalog { return catalog }, Namespaces: live})
	if answer := review(t, injector.Fresh(), webReview(t, unchanged)); !answer.Allowed || len(answer.Patch) == 0 {
		t.Errorf("on /pods/fresh: allowed %v, patch %s", answer.Allowed, answer.Patch)
	}
}

// API servers send us the Pods that are selected as far as they know. One that
// only labels of its Namespace leave out may have been labelled a moment ago.
func TestPodInjectorLooksAgainAtARelabelledNamespace(t *testing.T) {
	staged := func(name, label string) map[string]any {
		return fixtures.SidecarSet(name).Select(label, "web").Container(name, "log:v1").
			Spec("namespaceSelector", map[string]any{"matchLabels": map[string]any{"env": "prod"}}).Map()
	}
	everywhere := fixtures.SidecarSet("all").Select("app", "web").Container("all", "log:v1").Map()
	prod := map[string]labels.Set{"default": {"env": "prod"}}
	tests := map[string]struct {
		sets     []map[string]any
		live     liveNamespaces
		earlier  int // Pods in the same second
		injected bool
		reads    int
	}{
		"and injects if it has the label now":               {[]map[string]any{staged("log", "app")}, liveNamespaces{labels: prod}, 0, true, 1},
		"and does not if it has not":                        {[]map[string]any{staged("log", "app")}, liveNamespaces{labels: map[string]labels.Set{"default": {}}}, 0, false, 1},
		"and goes by the snapshot if it cannot be read":     {[]map[string]any{staged("log", "app")}, liveNamespaces{err: errors.New("boom")}, 0, false, 1},
		"but not where labels of the Pod leave it out":      {[]map[string]any{staged("log", "other")}, liveNamespaces{labels: prod}, 0, false, 0},
		"but not where another SidecarSet selects it":       {[]map[string]any{staged("log", "app"), everywhere}, liveNamespaces{labels: prod}, 0, true, 0},
		"but not for all Pods if API servers send them all": {[]map[string]any{staged("log", "app")}, liveNamespaces{labels: map[string]labels.Set{"default": {}}}, 99, false, 20},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			injector := injector(catalogOf(t, tc.sets...), &tc.live)
			for range tc.earlier {
				review(t, injector, webReview(t, unchanged))
			}
			answer := review(t, injector, webReview(t, unchanged))
			if injected := len(answer.Patch) > 0; !answer.Allowed || injected != tc.injected || tc.live.reads != tc.reads {
				t.Errorf("allowed %v, injected %v after %d reads, want %v after %d", answer.Allowed, injected, tc.live.reads, tc.injected, tc.reads)
			}
		})
	}
}

// A Pod without its sidecar is worse than a retry.
func TestPodInjectorRefusesWhatItCannotTell(t *testing.T) {
	c := behind(t)
	c.err = errors.New("etcd is away")
	injector := c.injector()
	w := send(injector.Fresh(), bytes.NewReader(webReview(t, unchanged)))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
		t.Errorf("code %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
	}
	checkStatus(t, w, "etcd is away")
	if body := w.Body.String(); !strings.Contains(body, "cannot tell which SidecarSets select Pod default/web") {
		t.Errorf("the message does not name the Pod: %s", body)
	}
	// The next request, whose admission may be the same memory, is on /pods.
	if answer := review(t, injector, webReview(t, unchanged)); !answer.Allowed || c.asked != 1 {
		t.Errorf("allowed %v, asked %d times", answer.Allowed, c.asked)
	}
}
