package registration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// The shards are part of the manifests. A program that may create a webhook configuration can
// make API servers send it every Secret that is written.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=sidecarset-pods-0;sidecarset-pods-1;sidecarset-pods-2;sidecarset-pods-3;sidecarset-pods-4;sidecarset-pods-5;sidecarset-pods-6;sidecarset-pods-7;sidecarset-pods-8;sidecarset-pods-9;sidecarset-pods-10;sidecarset-pods-11;sidecarset-pods-12;sidecarset-pods-13;sidecarset-pods-14;sidecarset-pods-15,verbs=get;update

// Options configure a Registrar.
type Options struct {
	// Settings are common to all webhooks. NamespaceUID, Bundle and Ownerless are filled in when
	// webhooks are planned.
	Settings podwebhook.Settings
	// Bundle returns the CA bundle of the webhooks on the leader; while it is empty, no shard is written.
	Bundle func() []byte
	// FreshBundle is Bundle by what is stored now. The leader asks it before it changes a bundle; it is
	// nil if Bundle never changes.
	FreshBundle func(context.Context) ([]byte, error)
	// BundleChanged makes every later change of Bundle send on a channel; it is nil if Bundle never changes.
	BundleChanged func(chan<- struct{})
	// Certificate returns why API servers would not accept the serving certificate; nil
	// if they do.
	Certificate func(context.Context) error
	// ServesWebhooks is true if this process answers webhooks, with that certificate.
	ServesWebhooks bool
	// Injectors finds another injector. No SidecarSet is ready while there is one. The
	// leader still keeps webhooks, so that no Pod is missed when the other injector is
	// removed.
	Injectors *Injectors
	// Static means that an administrator keeps one webhook for all Pods. Then the leader
	// writes no webhooks, and only judges readiness.
	Static bool
	// Registry takes the metrics.
	Registry prometheus.Registerer
}

// store is what a Registrar and its leader use of a snapshot.Store.
type store interface {
	Current() *match.Snapshot
	Notify(changed chan<- struct{})
	HasObserved(podwebhook.Dependency) bool
	Seen(podwebhook.Dependency) bool
}

// cached has the operator's Namespace.
type cached interface {
	client.Reader
	snapshot.Informers
}

// Registrar writes the dependencies of SidecarSets that are being admitted. Every process that runs
// controllers has one. It is safe for concurrent use.
type Registrar struct {
	options Options
	shards  *Shards
	store   store
	cached  cached
	writer  client.Client
	prober  *prober
	m       *webhookMetrics
	cache   ReadinessCache // of the leader

	// ownerless is the time until which shards are written without an owner, in nanoseconds;
	// see write.
	ownerless atomic.Int64
	// pace limits the writes that only reviews cause: any Pod of the cluster can send a review. Each
	// write has API servers rebuild the webhooks of the shard. Up to version 1.35 they also keep 10 KB
	// for each path that they were ever given. Reviews that come together share a write, so a bulk of
	// SidecarSets stays below it; beyond it the leader writes what is stored.
	pace *rate.Limiter

	batches *snapshot.Shared[int, map[string]error] // writes by shards; see writeBatch
	mu      sync.Mutex
	waiting [podwebhook.Shards][]*podwebhook.Webhook // of reviews
}

// Setup adds a Registrar and its leader to the manager, for a process that runs controllers.
// Call it before controllers.Setup.
func Setup(mgr ctrl.Manager, shards *Shards, store *snapshot.Store, options Options) (*Registrar, error) {
	live := mgr.GetAPIReader()
	prober, err := newProber(options.Settings.Namespace, mgr.GetConfig(), live)
	if err != nil {
		return nil, err
	}
	w := newRegistrar(shards, store, mgr.GetCache(), mgr.GetClient(), prober, options)
	return w, mgr.Add(newLeader(w, live))
}

func newRegistrar(shards *Shards, store store, cached cached, writer client.Client, prober *prober, options Options) *Registrar {
	w := &Registrar{
		options: options, shards: shards, store: store, cached: cached, writer: writer, prober: prober,
		m: newWebhookMetrics(options.Registry), pace: rate.NewLimiter(rate.Every(reviewInterval), reviewBurst),
	}
	w.batches = snapshot.NewShared(podwebhook.Shards, w.writeBatch)
	return w
}

// Readiness returns what the leader knows of each SidecarSet.
func (w *Registrar) Readiness() *ReadinessCache { return &w.cache }

// Register makes API servers call the operator for the Pods that the SidecarSet (v1beta1) selects.
// It returns nil once a shard has its dependency and every API server that can be reached uses that
// shard. It returns an error, at the latest when ctx ends, if this is not so. The error is
// not a reason to refuse the SidecarSet, because the leader writes the webhook later. Concurrent
// calls about one shard share their writes.
//
// A review does not prove that the SidecarSet exists or will exist. So Register may add a webhook
// whose failures API servers ignore, but of other webhooks it changes only the path.
func (w *Registrar) Register(ctx context.Context, set *appsv1beta1.SidecarSet) error {
	start := time.Now()
	err := w.register(ctx, set)
	w.m.registered(time.Since(start), err)
	return err
}

func (w *Registrar) register(ctx context.Context, set *appsv1beta1.SidecarSet) error {
	e, err := podwebhook.Of(set)
	if err != nil {
		return err
	}
	settings, err := w.settings(ctx)
	if err != nil {
		return err
	}
	shard := e.Shard(settings.NamespaceUID)
	if err := w.add(ctx, shard, &e); err != nil {
		return err
	}
	return w.prober.await(ctx, shard, func() (uint64, error) {
		s := w.shards.At(shard)
		if s == nil || !s.HasDependency(e.Name, e.Dependencies[0]) {
			return 0, fmt.Errorf("another program has removed the Pod webhook from MutatingWebhookConfiguration %s; the leader restores it", podwebhook.ConfigurationName(shard))
		}
		return s.Serial, nil
	})
}

const (
	// reviewBurst is how many writes reviews cause together at most, apart from one in reviewInterval.
	reviewBurst    = 500
	reviewInterval = 10 * time.Second
)

var errPace = errors.New("too many SidecarSets have been reviewed; the leader writes the Pod webhook as soon as this one is stored")

// reviewTimeout bounds the write of a batch: no review waits for longer.
const reviewTimeout = 500 * time.Millisecond

// add returns nil once a shard has the dependency of a webhook.
func (w *Registrar) add(ctx context.Context, shard int, e *podwebhook.Webhook) error {
	w.mu.Lock()
	w.waiting[shard] = append(w.waiting[shard], e)
	w.mu.Unlock()
	refused, err := w.batches.Get(ctx, shard) // the batch is taken after the call, so it has the webhook
	w.mu.Lock()
	w.waiting[shard] = slices.DeleteFunc(w.waiting[shard], func(other *podwebhook.Webhook) bool { return other == e })
	w.mu.Unlock()
	if ctx.Err() != nil {
		return fmt.Errorf("MutatingWebhookConfiguration %s could not be written in time", podwebhook.ConfigurationName(shard))
	}
	if err == nil {
		err = refused[e.Name]
	}
	return err
}

// writeBatch writes the dependencies of all reviews that wait for a shard in one object. It returns why
// webhooks got no place, by name.
func (w *Registrar) writeBatch(ctx context.Context, shard int) (refused map[string]error, err error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	settings, err := w.settings(ctx)
	if err != nil {
		return nil, err
	}
	var batch []podwebhook.Webhook
	w.mu.Lock()
	for _, e := range w.waiting[shard] {
		batch = append(batch, *e)
	}
	w.mu.Unlock()
	for s := w.shards.At(shard); ; s = nil {
		if s == nil {
			if s, err = w.shards.Read(ctx, shard); err != nil {
				return nil, err
			}
		}
		stored := w.stored()
		elsewhere := 0
		for i, other := range w.shards.All() {
			if other != nil && i != shard {
				elsewhere += len(other.Unstored(stored))
			}
		}
		next, refused := s.Review(podwebhook.Combine(settings.NamespaceUID, batch)[shard], stored, elsewhere, settings)
		if next == nil {
			return refused, nil
		}
		if !w.pace.Allow() {
			return nil, errPace
		}
		if written, err := w.write(ctx, s, next); written != nil || err != nil {
			return refused, err
		}
	}
}

// errUninstalling says that the operator is being uninstalled.
var errUninstalling = errors.New("the operator's Namespace is being deleted")

// settings completes the settings of the options. errUninstalling says that the operator's
// Namespace is being deleted.
func (w *Registrar) settings(ctx context.Context) (*podwebhook.Settings, error) {
	s := w.options.Settings
	namespace := snapshot.Metadata(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := w.cached.Get(ctx, types.NamespacedName{Name: s.Namespace}, namespace); err != nil {
		return nil, fmt.Errorf("reading Namespace %s: %w", s.Namespace, err)
	}
	if namespace.DeletionTimestamp != nil {
		return nil, errUninstalling
	}
	s.NamespaceUID = namespace.UID
	s.Ownerless = time.Now().UnixNano() < w.ownerless.Load()
	return &s, nil
}

// ownerlessFor is the time for which shards are written without an owner after the API server
// has refused one.
const ownerlessFor = 10 * time.Minute

// write writes the next version of a shard, and returns it. Shards then has it, or a later one. It
// returns nil if the shard has changed since the version that next follows.
//
// The admission plugin OwnerReferencesPermissionEnforcement lets a program set an owner only if
// it may delete the object. The operator may not, so with this plugin it writes shards without an
// owner: immediately, since no reconcile repeats the write of a review.
func (w *Registrar) write(ctx context.Context, from *podwebhook.Shard, next *admissionregistrationv1.MutatingWebhookConfiguration) (written *podwebhook.Shard, err error) {
	sameOwner := podwebhook.SameOwner(from.Object, next) // the answer replaces next
	err = w.writer.Update(ctx, next)
	if apierrors.IsForbidden(err) && !sameOwner {
		w.ownerless.Store(time.Now().Add(ownerlessFor).UnixNano())
		next.OwnerReferences = from.Object.OwnerReferences
		err = w.writer.Update(ctx, next)
	}
	switch {
	case err == nil:
		written, err = w.shards.take(ctx, from.Index, next)
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		err = nil
	}
	w.m.wrote(written == nil, err)
	if err != nil {
		err = fmt.Errorf("writing MutatingWebhookConfiguration %s: %w", from.Object.Name, err)
	}
	return written, err
}
