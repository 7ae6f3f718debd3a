package pods_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/rival"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// liveNamespaces is an API server that answers reads of Namespaces.
type liveNamespaces struct {
	client.Reader
	labels map[string]labels.Set
	err    error
	reads  int
	read   func() // called at each read, if not nil
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

// newInjector returns an Injector. By default, its snapshot is trusted and complete, and
// there is no other injector.
func newInjector(o pods.Options) *pods.Injector {
	if o.CatchUp == nil {
		o.CatchUp = func(context.Context) error { return nil }
	}
	if o.Trusted == nil {
		o.Trusted = func() bool { return true }
	}
	if o.Rival == nil {
		o.Rival = func() *rival.Injector { return nil }
	}
	if o.Revision == nil {
		o.Revision = func(context.Context, *appsv1beta1.SidecarSet) (*appsv1.ControllerRevision, error) { return nil, nil }
	}
	if o.Client == nil {
		o.Client = func(context.Context) netip.Addr { return netip.Addr{} }
	}
	if o.RecordEvent == nil {
		o.RecordEvent = func(events.Event) {}
	}
	return pods.NewInjector(o)
}

// injector returns a handler that decides by catalog and excludes kube-system.
func injector(catalog *match.Snapshot, live *liveNamespaces) server.Handler {
	return newInjector(pods.Options{
		Snapshot:           func() *match.Snapshot { return catalog },
		Namespaces:         live,
		ExcludedNamespaces: []string{"kube-system"},
		Clock:              clocktesting.NewFakePassiveClock(fixtures.Now),
	}).Settled
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
