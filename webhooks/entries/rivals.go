package entries

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	admissionregistrationclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/rival"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// Whose configurations there are is not known beforehand, so no name restricts
// it. They hold no secrets.
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,verbs=list;watch

// Rivals watches, on every replica, for another program that injects SidecarSets:
// OpenKruise, or a second operator; and for the entry for Pods that an
// administrator keeps for us. It keeps nothing of other configurations. Its
// methods are safe for concurrent use, and none but Start does I/O.
type Rivals struct {
	configurations cache.ListerWatcher
	namespace      string
	present        prometheus.Gauge

	current atomic.Pointer[rival.Injector]
	listed  atomic.Bool // all configurations have been looked at
	calls   atomic.Bool // somebody's configuration has Pods sent to us
	barrier atomic.Bool // one of those has the barrier entry of static mode

	mu     sync.Mutex
	found  map[string]*rival.Injector // by configuration
	ours   map[string]bool            // the configurations that have Pods sent to us, and whether they have the barrier entry
	notify []chan<- struct{}
}

// NewRivals returns a Rivals for the operator in a namespace. Add it to the
// manager.
func NewRivals(config *rest.Config, httpClient *http.Client, namespace string, registry prometheus.Registerer) (*Rivals, error) {
	client, err := admissionregistrationclient.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("making a client for webhook configurations: %w", err)
	}
	configurations := client.MutatingWebhookConfigurations()
	r := newRivals(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return configurations.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return configurations.Watch(ctx, o)
		},
	}, namespace)
	if err := registry.Register(r.present); err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	return r, nil
}

func newRivals(configurations cache.ListerWatcher, namespace string) *Rivals {
	return &Rivals{
		configurations: configurations,
		namespace:      namespace,
		found:          map[string]*rival.Injector{},
		ours:           map[string]bool{},
		present: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sidecarset_other_injectors",
			Help: "Webhook configurations by which another program injects SidecarSets as well; the condition Ready of SidecarSets names one.",
		}),
	}
}

// NeedLeaderElection reports false: every replica has to know.
func (*Rivals) NeedLeaderElection() bool { return false }

// Injector returns another injector that is live, the first by the name of its
// configuration; nil if none is known.
func (r *Rivals) Injector() *rival.Injector { return r.current.Load() }

// Problem says who else injects and what to do about it; "" if nobody does.
func (r *Rivals) Problem() string { return r.current.Load().Message() }

// StaticEntry says whether a configuration that the operator does not keep has new
// Pods sent to it, and whether that is known yet.
func (r *Rivals) StaticEntry() (stands, known bool) { return r.calls.Load(), r.listed.Load() }

// StaticBarrier is the name of the barrier that such a configuration has; "" if it
// has none, as those of earlier manifests.
func (r *Rivals) StaticBarrier() string {
	if r.barrier.Load() {
		return entryplan.StaticBarrier
	}
	return ""
}

// Notify makes every later change send on the channel, without waiting for a
// receiver. It is called before the manager starts.
func (r *Rivals) Notify(changed chan<- struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notify = append(r.notify, changed)
}

// Start watches until ctx ends.
func (r *Rivals) Start(ctx context.Context) error {
	store := &rivalStore{rivals: r, ctx: ctx}
	reflector := cache.NewReflectorWithOptions(r.configurations, &admissionregistrationv1.MutatingWebhookConfiguration{}, store,
		cache.ReflectorOptions{Name: "other injectors", Backoff: &snapshot.WatchPause})
	reflector.RunWithContext(ctx)
	return nil
}

// set replaces what is known: of one configuration, or of all there are.
func (r *Rivals) set(ctx context.Context, change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
	called := r.calls.Swap(len(r.ours) > 0)
	r.barrier.Store(slices.Contains(slices.Collect(maps.Values(r.ours)), true))
	r.present.Set(float64(len(r.found)))
	var first *rival.Injector
	if names := slices.Sorted(maps.Keys(r.found)); len(names) > 0 {
		first = r.found[names[0]]
	}
	before := r.current.Swap(first)
	if before.Message() == first.Message() && called == r.calls.Load() {
		return
	}
	switch logger := log.FromContext(ctx).WithName("rivals"); {
	case before.Message() == first.Message():
	case first != nil:
		logger.Info("Another program injects SidecarSets", "reason", first.Message())
	default:
		logger.Info("No other program injects SidecarSets any more", "MutatingWebhookConfiguration", before.Configuration)
	}
	for _, changed := range r.notify {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// rivalStore is where the reflector puts configurations.
type rivalStore struct {
	rivals *Rivals
	ctx    context.Context //nolint:containedctx // of Start, which outlives the reflector
}

// Add is called for a configuration that has appeared.
func (s *rivalStore) Add(obj any) error { return s.Update(obj) }

// Update is called for a configuration that has changed.
func (s *rivalStore) Update(obj any) error {
	s.rivals.set(s.ctx, func() { s.rivals.note(obj) })
	return nil
}

// Delete is called for a configuration that is gone.
func (s *rivalStore) Delete(obj any) error {
	name, err := cache.DeletionHandlingObjectToName(obj)
	if err != nil {
		return fmt.Errorf("reading a MutatingWebhookConfiguration: %w", err)
	}
	s.rivals.set(s.ctx, func() {
		delete(s.rivals.found, name.Name)
		delete(s.rivals.ours, name.Name)
	})
	return nil
}

// Replace is called with all there are.
func (s *rivalStore) Replace(list []any, _ string) error {
	s.rivals.set(s.ctx, func() {
		clear(s.rivals.found)
		clear(s.rivals.ours)
		for _, obj := range list {
			s.rivals.note(obj)
		}
		s.rivals.listed.Store(true)
	})
	return nil
}

// Resync does nothing: everything is kept.
func (s *rivalStore) Resync() error { return nil }

// note takes in one configuration.
func (r *Rivals) note(obj any) {
	configuration, ok := obj.(*admissionregistrationv1.MutatingWebhookConfiguration)
	if !ok {
		return
	}
	delete(r.found, configuration.Name)
	delete(r.ours, configuration.Name)
	if injector := rival.Find(configuration, r.namespace); injector != nil {
		r.found[configuration.Name] = injector
	}
	if rival.CallsUs(configuration, r.namespace) && !entryplan.Labelled().Matches(labels.Set(configuration.Labels)) {
		r.ours[configuration.Name] = rival.HasBarrier(configuration, r.namespace)
	}
}
