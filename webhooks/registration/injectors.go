package registration

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/injectors"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// The names of another injector's configurations are not known beforehand, so no name
// restricts this right. Configurations hold no secrets.
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,verbs=list;watch

// Injectors watches, on every replica, for another injector. It also watches for the webhook for Pods that an administrator keeps with
// --pod-webhook=static. Its methods are safe for concurrent use. Only Start does I/O.
type Injectors struct {
	informers snapshot.Informers
	namespace string
	present   prometheus.Gauge

	current atomic.Pointer[injectors.Injector]
	listed  atomic.Bool // all configurations have been looked at

	mu    sync.Mutex
	found map[string]*injectors.Injector // by configuration
	// ours has the administrator's configurations that make API servers call the operator
	// for Pods. The value says whether they have the probe webhook of static mode.
	ours   map[string]bool
	notify chan<- struct{} // nil without a call of Notify
}

// NewInjectors returns Injectors for the operator in a namespace. Add it to the manager,
// whose cache has the informers.
func NewInjectors(informers snapshot.Informers, namespace string, registry prometheus.Registerer) *Injectors {
	return &Injectors{
		informers: informers,
		namespace: namespace,
		found:     map[string]*injectors.Injector{},
		ours:      map[string]bool{},
		present: promauto.With(registry).NewGauge(prometheus.GaugeOpts{
			Name: "sidecarset_other_injectors",
			Help: "Webhook configurations by which another program injects SidecarSets as well; the condition Ready of SidecarSets names one.",
		}),
	}
}

// NeedLeaderElection reports false: every replica has to know other injectors.
func (*Injectors) NeedLeaderElection() bool { return false }

// Injector returns another injector that is live, the first by the name of its
// configuration; nil if none is known.
func (i *Injectors) Injector() *injectors.Injector { return i.current.Load() }

// Ready is a readiness check: it fails until all configurations have been looked at.
// Before that, Injector may return nil although there is one.
func (i *Injectors) Ready(*http.Request) error {
	if !i.listed.Load() {
		return errors.New("the MutatingWebhookConfigurations have not all been read yet, so another injector may be live")
	}
	return nil
}

// StaticWebhook reports whether a configuration of the administrator makes API servers call
// the operator for new Pods.
func (i *Injectors) StaticWebhook() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.ours) > 0
}

// HasStaticProbe reports whether such a configuration has the probe webhook of static mode. The
// administrator may leave it out.
func (i *Injectors) HasStaticProbe() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Contains(slices.Collect(maps.Values(i.ours)), true)
}

// Notify makes every later change send on this channel, without waiting for a
// receiver. It is called before the manager starts.
func (i *Injectors) Notify(changed chan<- struct{}) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.notify = changed
}

// Start begins to watch, and returns when all configurations have been looked at.
func (i *Injectors) Start(ctx context.Context) error {
	registration, err := snapshot.Follow(ctx, i.informers, configurations(), func(name string, c, _ *admissionregistrationv1.MutatingWebhookConfiguration) {
		i.note(ctx, name, c)
	})
	if err != nil {
		return err
	}
	i.listed.Store(cache.WaitForCacheSync(ctx.Done(), registration.HasSynced))
	i.mu.Lock()
	defer i.mu.Unlock()
	snapshot.Signal(i.notify)
	return nil
}

// note updates the state for one configuration. c is nil if it is deleted.
func (i *Injectors) note(ctx context.Context, name string, c *admissionregistrationv1.MutatingWebhookConfiguration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	called := len(i.ours) > 0
	delete(i.found, name)
	delete(i.ours, name)
	if c != nil {
		if injector := injectors.Find(c); injector != nil {
			i.found[name] = injector
		}
		if injectors.CallsUs(c, i.namespace) && !labelled(c) {
			i.ours[name] = injectors.HasProbe(c, i.namespace)
		}
	}
	i.present.Set(float64(len(i.found)))
	var first *injectors.Injector
	if names := slices.Sorted(maps.Keys(i.found)); len(names) > 0 {
		first = i.found[names[0]]
	}
	before := i.current.Swap(first)
	if before.Message() == first.Message() && called == (len(i.ours) > 0) {
		return
	}
	switch logger := log.FromContext(ctx).WithName("injectors"); {
	case before.Message() == first.Message():
	case first != nil:
		logger.Info("Another program injects SidecarSets", "reason", first.Message())
	default:
		logger.Info("No other program injects SidecarSets any more", "MutatingWebhookConfiguration", before.Configuration)
	}
	snapshot.Signal(i.notify)
}
