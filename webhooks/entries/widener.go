package entries

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
	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// The slots are part of the manifests. A program that may create a webhook configuration can
// make API servers send it every Secret that is written.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=sidecarset-pods-0;sidecarset-pods-1;sidecarset-pods-2;sidecarset-pods-3;sidecarset-pods-4;sidecarset-pods-5;sidecarset-pods-6;sidecarset-pods-7;sidecarset-pods-8;sidecarset-pods-9;sidecarset-pods-10;sidecarset-pods-11;sidecarset-pods-12;sidecarset-pods-13;sidecarset-pods-14;sidecarset-pods-15,verbs=get;update

// Options configure a Widener.
type Options struct {
	// Settings are common to all entries. NamespaceUID, Bundle and Ownerless are filled in when
	// entries are planned.
	Settings entry.Settings
	// Bundle returns the CA bundle of the entries on the leader; while it is empty, no slot is written.
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
	// leader still keeps entries, so that no Pod is missed when the other injector is
	// removed.
	Injectors *Injectors
	// Static means that an administrator keeps one entry for all Pods. Then the leader
	// writes no entries, and only judges readiness.
	Static bool
	// Registry takes the metrics.
	Registry prometheus.Registerer
}

// catalog is what a Widener and its leader use of a snapshot.Catalog.
type catalog interface {
	Current() *match.Snapshot
	Notify(changed chan<- struct{})
	Holds(entry.Need) bool
	Seen(entry.Need) bool
}

// cached has the operator's Namespace.
type cached interface {
	client.Reader
	snapshot.Informers
}

// Widener writes the needs of SidecarSets that are being admitted. Every process that runs
// controllers has one. It is safe for concurrent use.
type Widener struct {
	options Options
	slots   *Slots
	catalog catalog
	cached  cached
	writer  client.Client
	prober  *prober
	m       *entryMetrics
	board   Board // of the leader

	// ownerless is the time until which slots are written without an owner, in nanoseconds;
	// see write.
	ownerless atomic.Int64
	// pace limits the writes that only reviews cause: any Pod of the cluster can send a review. Each
	// write has API servers rebuild the entries of the slot. Up to version 1.35 they also keep 10 KB
	// for each path that they were ever given. Reviews that come together share a write, so a bulk of
	// SidecarSets stays below it; beyond it the leader writes what is stored.
	pace *rate.Limiter

	batches *snapshot.Shared[int, map[string]error] // writes by slots; see writeBatch
	mu      sync.Mutex
	waiting [entry.Slots][]*entry.Entry // of reviews
}

// Setup adds a Widener and its leader to the manager, for a process that runs controllers.
// Call it before controllers.Setup.
func Setup(mgr ctrl.Manager, slots *Slots, catalog *snapshot.Catalog, options Options) (*Widener, error) {
	live := mgr.GetAPIReader()
	prober, err := newProber(options.Settings.Namespace, mgr.GetConfig(), live)
	if err != nil {
		return nil, err
	}
	w := newWidener(slots, catalog, mgr.GetCache(), mgr.GetClient(), prober, options)
	return w, mgr.Add(newLeader(w, live))
}

func newWidener(slots *Slots, catalog catalog, cached cached, writer client.Client, prober *prober, options Options) *Widener {
	w := &Widener{
		options: options, slots: slots, catalog: catalog, cached: cached, writer: writer, prober: prober,
		m: newEntryMetrics(options.Registry), pace: rate.NewLimiter(rate.Every(reviewInterval), reviewBurst),
	}
	w.batches = snapshot.NewShared(entry.Slots, w.writeBatch)
	return w
}

// Readiness returns what the leader knows of each SidecarSet.
func (w *Widener) Readiness() *Board { return &w.board }

// Widen makes API servers call the operator for the Pods that the SidecarSet (v1beta1) selects.
// It returns nil once a slot has its need and every API server that can be reached uses that
// slot. It returns an error, at the latest when ctx ends, if this is not proven. The error is
// not a reason to refuse the SidecarSet, because the leader writes the entry later. Concurrent
// calls about one slot share their writes.
//
// A review does not prove that the SidecarSet exists or will exist. So Widen may add an entry
// whose failures API servers ignore, but of other entries it changes only the path.
func (w *Widener) Widen(ctx context.Context, set *appsv1beta1.SidecarSet) error {
	start := time.Now()
	err := w.widen(ctx, set)
	w.m.widened(time.Since(start), err)
	return err
}

func (w *Widener) widen(ctx context.Context, set *appsv1beta1.SidecarSet) error {
	e, err := entry.Of(set)
	if err != nil {
		return err
	}
	settings, err := w.settings(ctx)
	if err != nil {
		return err
	}
	slot := e.Slot(settings.NamespaceUID)
	if err := w.add(ctx, slot, &e); err != nil {
		return err
	}
	return w.prober.await(ctx, slot, func() (uint64, error) {
		s := w.slots.At(slot)
		if s == nil || !s.Holds(e.Name, e.Needs[0]) {
			return 0, fmt.Errorf("another program has removed the webhook entry from MutatingWebhookConfiguration %s; the leader restores it", entry.ConfigurationName(slot))
		}
		return s.Serial, nil
	})
}

const (
	// reviewBurst is how many writes reviews cause at once at most, besides one in reviewInterval.
	reviewBurst    = 500
	reviewInterval = 10 * time.Second
)

var errPace = errors.New("too many SidecarSets have been reviewed; the leader writes the webhook entry as soon as this one is stored")

// reviewTimeout bounds the write of a batch: no review waits for longer.
const reviewTimeout = 500 * time.Millisecond

// add returns nil once a slot has the need of an entry.
func (w *Widener) add(ctx context.Context, slot int, e *entry.Entry) error {
	w.mu.Lock()
	w.waiting[slot] = append(w.waiting[slot], e)
	w.mu.Unlock()
	refused, err := w.batches.Get(ctx, slot) // the batch is taken after the call, so it has the entry
	w.mu.Lock()
	w.waiting[slot] = slices.DeleteFunc(w.waiting[slot], func(other *entry.Entry) bool { return other == e })
	w.mu.Unlock()
	if ctx.Err() != nil {
		return fmt.Errorf("MutatingWebhookConfiguration %s could not be written in time", entry.ConfigurationName(slot))
	}
	if err == nil {
		err = refused[e.Name]
	}
	return err
}

// writeBatch writes the needs of all reviews that wait for a slot in one object. It returns why
// entries got no place, by name.
func (w *Widener) writeBatch(ctx context.Context, slot int) (refused map[string]error, err error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	settings, err := w.settings(ctx)
	if err != nil {
		return nil, err
	}
	var batch []entry.Entry
	w.mu.Lock()
	for _, e := range w.waiting[slot] {
		batch = append(batch, *e)
	}
	w.mu.Unlock()
	for s := w.slots.At(slot); ; s = nil {
		if s == nil {
			if s, err = w.slots.Read(ctx, slot); err != nil {
				return nil, err
			}
		}
		stored := w.stored()
		elsewhere := 0
		for i, other := range w.slots.All() {
			if other != nil && i != slot {
				elsewhere += len(other.Unstored(stored))
			}
		}
		next, refused := s.Review(entry.Combine(settings.NamespaceUID, batch)[slot], stored, elsewhere, settings)
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
func (w *Widener) settings(ctx context.Context) (*entry.Settings, error) {
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

// ownerlessFor is the time for which slots are written without an owner after the API server
// has refused one.
const ownerlessFor = 10 * time.Minute

// write writes the next version of a slot, and returns it. Slots then has it, or a later one. It
// returns nil if the slot has changed since the version that next follows.
//
// The admission plugin OwnerReferencesPermissionEnforcement lets a program set an owner only if
// it may delete the object. The operator may not, so with this plugin it writes slots without an
// owner: at once, since no reconcile repeats the write of a review.
func (w *Widener) write(ctx context.Context, from *entry.Slot, next *admissionregistrationv1.MutatingWebhookConfiguration) (written *entry.Slot, err error) {
	sameOwner := entry.SameOwner(from.Object, next) // the answer replaces next
	err = w.writer.Update(ctx, next)
	if apierrors.IsForbidden(err) && !sameOwner {
		w.ownerless.Store(time.Now().Add(ownerlessFor).UnixNano())
		next.OwnerReferences = from.Object.OwnerReferences
		err = w.writer.Update(ctx, next)
	}
	switch {
	case err == nil:
		written, err = w.slots.take(ctx, from.Index, next)
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		err = nil
	}
	w.m.wrote(written == nil, err)
	if err != nil {
		err = fmt.Errorf("writing MutatingWebhookConfiguration %s: %w", from.Object.Name, err)
	}
	return written, err
}
