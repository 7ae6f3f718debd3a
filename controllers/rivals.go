package controllers

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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	admissionregistrationclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/rival"
)

// Whose configurations there are is not known beforehand, so no name restricts
// it. They hold no secrets.
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,verbs=list;watch

// Rivals watches, on every replica, for another program that injects SidecarSets:
// OpenKruise, or a second operator. It keeps nothing of configurations that call
// none. Its methods are safe for concurrent use, and none but Start does I/O.
type Rivals struct {
	configurations cache.ListerWatcher
	namespace      string
	present        prometheus.Gauge

	current atomic.Pointer[rival.Injector]

	mu     sync.Mutex
	found  map[string]*rival.Injector // by configuration
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
		cache.ReflectorOptions{Name: "other injectors"})
	reflector.RunWithContext(ctx)
	return nil
}

// set replaces what is known: of one configuration, or of all there are.
func (r *Rivals) set(ctx context.Context, change func(found map[string]*rival.Injector)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r.found)
	r.present.Set(float64(len(r.found)))
	var first *rival.Injector
	if names := slices.Sorted(maps.Keys(r.found)); len(names) > 0 {
		first = r.found[names[0]]
	}
	before := r.current.Swap(first)
	if before.Message() == first.Message() {
		return
	}
	if logger := log.FromContext(ctx).WithName("rivals"); first != nil {
		logger.Info("Another program injects SidecarSets", "reason", first.Message())
	} else {
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
	s.rivals.set(s.ctx, func(found map[string]*rival.Injector) { s.note(found, obj) })
	return nil
}

// Delete is called for a configuration that is gone.
func (s *rivalStore) Delete(obj any) error {
	name, err := cache.DeletionHandlingObjectToName(obj)
	if err != nil {
		return fmt.Errorf("reading a MutatingWebhookConfiguration: %w", err)
	}
	s.rivals.set(s.ctx, func(found map[string]*rival.Injector) { delete(found, name.Name) })
	return nil
}

// Replace is called with all there are.
func (s *rivalStore) Replace(list []any, _ string) error {
	s.rivals.set(s.ctx, func(found map[string]*rival.Injector) {
		clear(found)
		for _, obj := range list {
			s.note(found, obj)
		}
	})
	return nil
}

// Resync does nothing: everything is kept.
func (s *rivalStore) Resync() error { return nil }

func (s *rivalStore) note(found map[string]*rival.Injector, obj any) {
	configuration, ok := obj.(*admissionregistrationv1.MutatingWebhookConfiguration)
	if !ok {
		return
	}
	if injector := rival.Find(configuration, s.rivals.namespace); injector != nil {
		found[configuration.Name] = injector
	} else {
		delete(found, configuration.Name)
	}
}
