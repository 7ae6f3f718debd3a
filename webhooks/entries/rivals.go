package entries

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

	"github.com/sidecarset/operator/internal/rival"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// The names of another injector's configurations are not known beforehand, so no name
// restricts this right. Configurations hold no secrets.
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,verbs=list;watch

// Rivals watches, on every replica, for another injector: OpenKruise, or a second
// operator. It also watches for the entry for Pods that an administrator keeps with
// --pod-webhook=static. Its methods are safe for concurrent use. Only Start does I/O.
type Rivals struct {
	informers snapshot.Informers
	namespace string
	present   prometheus.Gauge

	current atomic.Pointer[rival.Injector]
	listed  atomic.Bool // all configurations have been looked at

	mu    sync.Mutex
	found map[string]*rival.Injector // by configuration
	// ours has the administrator's configurations that make API servers call the operator
	// for Pods. The value says whether they have the barrier entry of static mode.
	ours   map[string]bool
	notify chan<- struct{} // nil without a call of Notify
}

// NewRivals returns a Rivals for the operator in a namespace. Add it to the manager,
// whose cache has the informers.
func NewRivals(informers snapshot.Informers, namespace string, registry prometheus.Registerer) *Rivals {
	return &Rivals{
		informers: informers,
		namespace: namespace,
		found:     map[string]*rival.Injector{},
		ours:      map[string]bool{},
		present: promauto.With(registry).NewGauge(prometheus.GaugeOpts{
			Name: "sidecarset_other_injectors",
			Help: "Webhook configurations by which another program injects SidecarSets as well; the condition Ready of SidecarSets names one.",
		}),
	}
}

// NeedLeaderElection reports false: every replica has to know other injectors.
func (*Rivals) NeedLeaderElection() bool { return false }

// Injector returns another injector that is live, the first by the name of its
// configuration; nil if none is known.
func (r *Rivals) Injector() *rival.Injector { return r.current.Load() }

// Ready is a readiness check: it fails until all configurations have been looked at.
// Before that, Injector may return nil although there is one.
func (r *Rivals) Ready(*http.Request) error {
	if !r.listed.Load() {
		return errors.New("the MutatingWebhookConfigurations have not all been read yet, so another injector may be live")
	}
	return nil
}

// StaticEntry reports whether a configuration of the administrator makes API servers call
// the operator for new Pods.
func (r *Rivals) StaticEntry() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ours) > 0
}

// HasStaticBarrier reports whether such a configuration has the barrier entry of static mode. The
// administrator may leave it out.
func (r *Rivals) HasStaticBarrier() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(slices.Collect(maps.Values(r.ours)), true)
}

// Notify makes every later change send on this channel, without waiting for a
// receiver. It is called before the manager starts.
func (r *Rivals) Notify(changed chan<- struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notify = changed
}

// Start begins to watch, and returns when all configurations have been looked at.
func (r *Rivals) Start(ctx context.Context) error {
	registration, err := snapshot.Follow(ctx, r.informers, configurations(), func(name string, c, _ *admissionregistrationv1.MutatingWebhookConfiguration) {
		r.note(ctx, name, c)
	})
	if err != nil {
		return err
	}
	r.listed.Store(cache.WaitForCacheSync(ctx.Done(), registration.HasSynced))
	r.mu.Lock()
	defer r.mu.Unlock()
	snapshot.Signal(r.notify)
	return nil
}

// note updates the state for one configuration. c is nil if it is deleted.
func (r *Rivals) note(ctx context.Context, name string, c *admissionregistrationv1.MutatingWebhookConfiguration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	called := len(r.ours) > 0
	delete(r.found, name)
	delete(r.ours, name)
	if c != nil {
		if injector := rival.Find(c, r.namespace); injector != nil {
			r.found[name] = injector
		}
		if rival.CallsUs(c, r.namespace) && !labelled(c) {
			r.ours[name] = rival.HasBarrier(c, r.namespace)
		}
	}
	r.present.Set(float64(len(r.found)))
	var first *rival.Injector
	if names := slices.Sorted(maps.Keys(r.found)); len(names) > 0 {
		first = r.found[names[0]]
	}
	before := r.current.Swap(first)
	if before.Message() == first.Message() && called == (len(r.ours) > 0) {
		return
	}
	switch logger := log.FromContext(ctx).WithName("rivals"); {
	case before.Message() == first.Message():
	case first != nil:
		logger.Info("Another program injects SidecarSets", "reason", first.Message())
	default:
		logger.Info("No other program injects SidecarSets any more", "MutatingWebhookConfiguration", before.Configuration)
	}
	snapshot.Signal(r.notify)
}
