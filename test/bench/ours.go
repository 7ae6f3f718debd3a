package bench

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/injectors"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// Ours is the operator's own handler.
type Ours struct{ *pods.Injector }

// NewOurs returns the operator's own handler with SidecarSets that are compiled as its Store
// compiles them.
func NewOurs(sets []map[string]any) Ours {
	store := BuildStore(CompileAll(sets))
	return Ours{pods.NewInjector(pods.Options{
		Snapshot:           func() *match.Snapshot { return store },
		ExcludedNamespaces: []string{"kube-system", "sidecarset-system"},
		Ensure:             func(context.Context, int, uint64, labels.Labels) error { return nil },
		OtherInjector:      func() *injectors.Injector { return nil },
		RecordEvent:        func(events.Event) {},
		Clock:              clocktesting.NewFakePassiveClock(Now),
	})}
}

// bodies are buffers for request bodies, which are used again, as in the webhook server.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// ServeHTTP reads the body and answers, without the webhook server's limits.
func (o Ours) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := bodies.Get().(*bytes.Buffer)
	defer bodies.Put(body)
	body.Reset()
	if _, err := body.ReadFrom(r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	server.Handler(o.Handle).Answer(r.Context(), w, server.Request{Body: body.Bytes()})
}

// path is that of a Pod webhook. The replica holds what it requires.
var path = podwebhook.PodsPath(3, 12_345_678)

// Handle answers a request as one by a webhook for Pods, whatever its path is.
func (o Ours) Handle(ctx context.Context, w http.ResponseWriter, r server.Request) error {
	r.Path = path
	return o.Injector.Handle(ctx, w, r)
}

// CompileAll compiles SidecarSets.
func CompileAll(sets []map[string]any) []*inject.Compiled {
	sidecarSets := make([]*inject.Compiled, 0, len(sets))
	for _, set := range sets {
		compiled, err := inject.Compile(set)
		if err != nil {
			panic(fmt.Sprintf("compiling a fixture: %v", err))
		}
		sidecarSets = append(sidecarSets, compiled)
	}
	return sidecarSets
}

// BuildStore makes a snapshot in which the fixture Pods' namespace is known.
func BuildStore(sidecarSets []*inject.Compiled) *match.Snapshot {
	return match.Build(sidecarSets, map[string]labels.Set{Namespace: {"kubernetes.io/metadata.name": Namespace}})
}
