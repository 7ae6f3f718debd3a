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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// The objects for entries are part of the manifests. A program that may create a
// webhook configuration can make API servers send it every Secret that is written.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=sidecarset-pods-0;sidecarset-pods-1;sidecarset-pods-2;sidecarset-pods-3;sidecarset-pods-4;sidecarset-pods-5;sidecarset-pods-6;sidecarset-pods-7;sidecarset-pods-8;sidecarset-pods-9;sidecarset-pods-10;sidecarset-pods-11;sidecarset-pods-12;sidecarset-pods-13;sidecarset-pods-14;sidecarset-pods-15;sidecarset-pods-provisional,verbs=get;update
// The barrier: a ConfigMap that is created under dry-run only, at every API server.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=configmaps,namespace=sidecarset-system,verbs=create
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=discovery.k8s.io,resources=endpointslices,namespace=default,verbs=list

// Options configure a Keeper.
type Options struct {
	// Settings are common to all entries. NamespaceUID, Bundle and MinSerial
	// are filled in when entries are planned.
	Settings entryplan.Settings
	// Bundle returns the CA bundle of the entries; while it is empty, no entry is written.
	Bundle func() []byte
	// Certificate returns why API servers would not accept the serving certificate; nil
	// if they do.
	Certificate func(context.Context) error
	// ServesWebhooks is true if this process answers webhooks, with that certificate.
	ServesWebhooks bool
	// CatchUp returns nil once the Snapshots hold every SidecarSet that was stored when it
	// was called; see Freshness.
	CatchUp func(context.Context) error
	// Rivals finds another injector. No SidecarSet is ready while there is one. The
	// leader still keeps entries, so that no Pod is missed when the other injector is
	// removed. If the other injector is a second installation of this operator, the
	// leader keeps none, because their entries have the same names.
	Rivals *Rivals
	// Static means that an administrator keeps one entry for all Pods. Then the leader
	// writes no entries, and only judges readiness.
	Static bool
	// ProbeNamespace is the namespace in which Pods are created under dry-run before a
	// SidecarSet becomes ready. If it is empty, none are.
	ProbeNamespace string
	// Trust is the time for which a replica answers from a snapshot after a check. It
	// must be the same for all processes.
	Trust time.Duration
	// AdmissionWindow is the longest time between the admission of a SidecarSet and its
	// storage.
	AdmissionWindow time.Duration
	// MutatingManifest and ValidatingManifest are the names of the operator's
	// configurations in the manifests. The leader undoes webhooks for other objects in them.
	MutatingManifest, ValidatingManifest string
	// RecordEvent writes an Event about an entry that the leader restored. It does not wait.
	RecordEvent func(events.Event)
	// Registry takes the metrics.
	Registry prometheus.Registerer
}

// Keeper maintains the webhook entries through which API servers call the operator for
// the Pods that SidecarSets select. Every replica watches the configuration objects,
// and Widen adds the entry of a SidecarSet during its admission. The leader maintains
// all entries: see leader.
type Keeper struct {
	options Options
	cached  cache.Cache
	store   *configurationStore
	barrier *barrier
	m       *entryMetrics
	board   Board // of the leader

	// ownerless is the time until which objects are written without an owner, in
	// nanoseconds; see write.
	ownerless atomic.Int64
	pace      *rate.Limiter // of the writes that Widen causes

	mu      sync.Mutex
	pending []*widening
	changed chan struct{} // has capacity 1; receives a value if widenings are pending
}

// Setup adds a Keeper and its leader to the manager, for a process that runs controllers.
// Call it before controllers.Setup.
func Setup(mgr ctrl.Manager, sets Snapshots, options Options) (*Keeper, error) {
	live, writer := mgr.GetAPIReader(), mgr.GetClient()
	w := &Keeper{
		options: options,
		cached:  mgr.GetCache(),
		barrier: &barrier{namespace: options.Settings.Namespace, config: mgr.GetConfig(), slices: live},
		m:       newEntryMetrics(options.Registry),
		pace:    newWidenPace(),
		changed: make(chan struct{}, 1),
	}
	l := newLeader(w, sets, live, writer)
	if options.ProbeNamespace != "" {
		l.probe = newPodProbe(options.ProbeNamespace, writer, l.wake)
	}
	sets.Notify(l.again)
	options.Rivals.Notify(l.again)
	w.store = &configurationStore{live: live, writer: writer, notify: l.wake}
	return w, errors.Join(mgr.Add(l), mgr.Add(w))
}

// Readiness returns what the leader knows of each SidecarSet.
func (w *Keeper) Readiness() *Board { return &w.board }

// NeedLeaderElection reports false: every replica admits SidecarSets.
func (*Keeper) NeedLeaderElection() bool { return false }

// Start watches the configuration objects and widens them until ctx ends.
func (w *Keeper) Start(ctx context.Context) error {
	if _, err := snapshot.Follow(ctx, w.cached, configurations(), w.store.changed); err != nil {
		return err
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			continue
		case <-w.changed:
		}
		if w.pace.WaitN(ctx, 0) != nil { // ctx has ended
			continue
		}
		if batch := w.takePending(); len(batch) > 0 {
			w.widen(ctx, batch)
		}
	}
	return nil
}

// Limits of the writes that reviews cause, because a stranger may send reviews: widenBurst
// at once, then one per widenInterval. Waiting reviews share the next write.
const (
	widenBurst    = 100
	widenInterval = 50 * time.Millisecond
)

// newWidenPace returns a bucket that a batch may overdraw: the number of its writes is known
// only when it is planned. The next batch waits until the bucket is filled again.
func newWidenPace() *rate.Limiter { return rate.NewLimiter(rate.Every(widenInterval), widenBurst) }

// settings completes the settings of the options. errUninstalling says that the operator's
// Namespace is being deleted.
func (w *Keeper) settings(ctx context.Context) (*entryplan.Settings, error) {
	s := w.options.Settings
	namespace := snapshot.Metadata(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := w.cached.Get(ctx, types.NamespacedName{Name: s.Namespace}, namespace); err != nil {
		return nil, fmt.Errorf("reading Namespace %s: %w", s.Namespace, err)
	}
	if namespace.DeletionTimestamp != nil {
		return nil, errUninstalling
	}
	s.NamespaceUID = namespace.UID
	if s.Bundle = w.options.Bundle(); len(s.Bundle) == 0 {
		return nil, errors.New("there is no CA bundle yet")
	}
	now := time.Now()
	s.MinSerial = w.store.minSerial(now)
	s.Ownerless = now.UnixNano() < w.ownerless.Load()
	return &s, nil
}

// errUninstalling says that the operator is being uninstalled.
var errUninstalling = errors.New("the operator's Namespace is being deleted")

// widening is one SidecarSet that waits for its entry.
type widening struct {
	entry entryplan.Entry
	done  chan error   // has capacity 1
	gone  func() error // returns an error if its review no longer waits
}

// Widen makes API servers call the operator, on the fresh path, for the Pods that the
// SidecarSet (v1beta1) selects. It returns nil once an entry is written and every API
// server uses it. It returns an error, at the latest when ctx ends, if this is not
// proven. The error is not a reason to refuse the SidecarSet, because the leader writes
// the entry later. Concurrent calls share their writes.
//
// A review does not prove that the SidecarSet exists or will exist. So Widen may add a
// provisional entry, but of other entries it changes only the path.
func (w *Keeper) Widen(ctx context.Context, set *appsv1beta1.SidecarSet) error {
	start := time.Now()
	err := w.await(ctx, set)
	w.m.widened(time.Since(start), err)
	return err
}

func (w *Keeper) await(ctx context.Context, set *appsv1beta1.SidecarSet) error {
	if other := w.options.Rivals.Injector(); other.ClaimsEntries() {
		return errors.New(other.Message())
	}
	entry, err := entryplan.Of(set)
	if err != nil {
		return err
	}
	widening := &widening{entry: entry, done: make(chan error, 1), gone: ctx.Err}
	w.mu.Lock()
	w.pending = append(w.pending, widening)
	w.mu.Unlock()
	snapshot.Signal(w.changed)
	select {
	case err := <-widening.done:
		return err
	case <-ctx.Done():
		return errors.New("the webhook entry is not known to be in force at every API server yet")
	}
}

// takePending returns the widenings whose reviews still wait.
func (w *Keeper) takePending() []*widening {
	w.mu.Lock()
	defer w.mu.Unlock()
	pending := slices.DeleteFunc(w.pending, func(one *widening) bool { return one.gone() != nil })
	w.pending = nil
	return pending
}

// widenTimeout is the timeout of one batch, even if no review waits for it any more.
const widenTimeout = 2 * time.Second

// widen writes the entries that a batch needs, and reports to each review when its
// entry is in force.
func (w *Keeper) widen(ctx context.Context, batch []*widening) {
	ctx, cancel := context.WithTimeout(ctx, widenTimeout)
	layout, settings, err := w.writeBatch(ctx, batch)
	if apierrors.IsInvalid(err) && len(batch) > 1 {
		cancel()
		for i := range batch { // one by one, because the API server may refuse one of them
			w.widen(context.WithoutCancel(ctx), batch[i:i+1])
		}
		return
	}
	if err != nil {
		log.FromContext(ctx).WithName("pod-webhooks").Info("Could not widen", "entries", len(batch), "reason", err.Error())
		for _, one := range batch {
			one.done <- err
		}
		cancel()
		return
	}
	go func() {
		defer cancel()
		w.tell(ctx, layout, settings, batch)
	}()
}

// writeBatch writes the entries that a batch needs, and returns the objects after that.
func (w *Keeper) writeBatch(ctx context.Context, batch []*widening) (entryplan.Layout, *entryplan.Settings, error) {
	wanted := make([]entryplan.Entry, 0, len(batch))
	for _, one := range batch {
		wanted = append(wanted, one.entry)
	}
	wanted = entryplan.Combine(wanted)
	settings, err := w.settings(ctx)
	if err != nil {
		return entryplan.Layout{}, nil, err
	}
	for {
		layout, err := w.store.recordable(ctx)
		if err != nil {
			return entryplan.Layout{}, nil, err
		}
		changes, _ := entryplan.Widen(layout, wanted, settings) // tell reports entries without capacity to their reviews
		w.pace.ReserveN(time.Now(), len(changes))
		stale := false
		for i, change := range changes {
			again, err := w.write(ctx, change)
			if err != nil {
				return entryplan.Layout{}, nil, err
			}
			if stale = stale || again; i == 0 && again {
				break // the names could not be recorded
			}
		}
		if !stale {
			return w.store.current(), settings, nil
		}
	}
}

// ownerlessFor is the time for which objects are written without an owner after the API
// server has refused one.
const ownerlessFor = 10 * time.Minute

// write carries out a change. The admission plugin OwnerReferencesPermissionEnforcement
// lets a program set an owner only if it may delete the object. The operator may not,
// so with this plugin it writes objects without an owner.
func (w *Keeper) write(ctx context.Context, change entryplan.Change) (stale bool, err error) {
	before := w.store.current()[change.Index]
	stale, err = w.store.write(ctx, change)
	if now := time.Now(); apierrors.IsForbidden(err) && before != nil && entryplan.Owner(before) != entryplan.Owner(change.Object) {
		w.ownerless.Store(now.Add(ownerlessFor).UnixNano())
	}
	w.m.wrote(stale, err)
	return stale, err
}

// tell waits until API servers use the objects that serve a batch, and reports the
// result to the reviews.
func (w *Keeper) tell(ctx context.Context, layout entryplan.Layout, settings *entryplan.Settings, batch []*widening) {
	waiting := map[int][]*widening{}
	for _, one := range batch {
		i, ok := layout.Serves(one.entry, settings)
		if !ok {
			one.done <- errors.New("no provisional webhook entry is available: too many SidecarSets are being created, the selectors are very large, or the entry has expired; the leader writes a webhook entry as soon as the SidecarSet is stored")
			continue
		}
		waiting[i] = append(waiting[i], one)
	}
	var all sync.WaitGroup
	for i, of := range waiting {
		all.Go(func() {
			err := w.barrier.await(ctx, layout[i].Name, entryplan.Serial(layout[i]))
			for _, one := range of {
				one.done <- err
			}
		})
	}
	all.Wait()
}
