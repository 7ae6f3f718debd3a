package pods_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/injectors"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// liveNamespaces is an API server that answers reads of Namespaces.
type liveNamespaces struct {
	client.Reader
	labels map[string]labels.Set
	err    error
	reads  int
}

func (l *liveNamespaces) Get(ctx context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	l.reads++
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

// paths is an Injector, called by one of its paths, whatever the path of a request is.
type paths struct{ *pods.Injector }

// static calls by the webhook that an administrator keeps.
func (p paths) static(ctx context.Context, w http.ResponseWriter, r server.Request) error {
	r.Path = podwebhook.PathPods
	return p.Handle(ctx, w, r)
}

// shard calls by a webhook of shard 3.
func (p paths) shard(ctx context.Context, w http.ResponseWriter, r server.Request) error {
	r.Path = podwebhook.PodsPath(3, 57)
	return p.Handle(ctx, w, r)
}

// newInjector returns an Injector. By default, its snapshot holds what is required, and
// there is no other injector.
func newInjector(o pods.Options) paths {
	if o.Ensure == nil {
		o.Ensure = func(context.Context, int, uint64, labels.Labels) error { return nil }
	}
	if o.Know == nil {
		o.Know = func(context.Context, []string) error { return nil }
	}
	if o.OtherInjector == nil {
		o.OtherInjector = func() *injectors.Injector { return nil }
	}
	if o.Revision == nil {
		o.Revision = func(context.Context, *inject.Compiled) (*appsv1.ControllerRevision, error) { return nil, nil }
	}
	if o.RecordEvent == nil {
		o.RecordEvent = func(events.Event) {}
	}
	return paths{pods.NewInjector(o)}
}

// injector returns a handler that decides by store and excludes kube-system.
func injector(store *match.Snapshot, live *liveNamespaces) server.Handler {
	return newInjector(pods.Options{
		Snapshot:           func() *match.Snapshot { return store },
		Namespaces:         live,
		ExcludedNamespaces: []string{"kube-system"},
		Clock:              clocktesting.NewFakePassiveClock(fixtures.Now),
	}).static
}

// storeOf compiles SidecarSets; the namespace default is known.
func storeOf(t testing.TB, sets ...map[string]any) *match.Snapshot {
	t.Helper()
	var sidecarSets []*inject.Compiled
	for _, set := range sets {
		sidecarSets = append(sidecarSets, fixtures.Compiled(t, set))
	}
	return match.Build(sidecarSets, map[string]labels.Set{"default": {"kubernetes.io/metadata.name": "default"}})
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
