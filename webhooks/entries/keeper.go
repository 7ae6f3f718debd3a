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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// The objects for entries are part of the manifests. A program that may create a webhook
// configuration can have every Secret that is written sent to it.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=sidecarset-pods-0;sidecarset-pods-1;sidecarset-pods-2;sidecarset-pods-3;sidecarset-pods-4;sidecarset-pods-5;sidecarset-pods-6;sidecarset-pods-7;sidecarset-pods-8;sidecarset-pods-9;sidecarset-pods-10;sidecarset-pods-11;sidecarset-pods-12;sidecarset-pods-13;sidecarset-pods-14;sidecarset-pods-15;sidecarset-pods-provisional,verbs=get;update
// The barrier: a ConfigMap that is created under dry-run only, at every API server.
// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=configmaps,namespace=sidecarset-system,verbs=create
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=discovery.k8s.io,resources=endpointslices,namespace=default,verbs=list

// Options say what entries look like and what else decides about
// them.
type Options struct {
	// Settings are common to all entries. NamespaceUID, Bundle and MinSerial
	// are filled in when entries are planned.
	Settings entryplan.Settings
	// Bundle returns what API servers have to trust; nothing is written while
	// it is empty.
	Bundle func() []byte
	// Certificate says why API servers would not accept the certificate that
	// is served; nil if they do.
	Certificate func(context.Context) error
	// ServesWebhooks says that this process answers webhooks, with that certificate.
	ServesWebhooks bool
	// Rivals knows another injector. No SidecarSet is ready while there is one.
	// Entries are kept all the same, so that nothing is missed when it goes; but
	// not against another operator of our kind, whose entries have the same names.
	Rivals *Rivals
	// Static says that an administrator keeps one entry for all Pods. None is
	// written then; the leader still says which SidecarSets are ready.
	Static bool
	// ProbeNamespace is where Pods are tried under dry-run before a SidecarSet is
	// said to be ready; none are if it is empty.
	ProbeNamespace string
	// Trust is for how long a replica answers from a snapshot after it checked it. It has
	// to be the same for all processes.
	Trust time.Duration
	// AdmissionWindow is how long a SidecarSet can be on its way between its
	// admission and its storage.
	AdmissionWindow time.Duration
	// Tell writes an Event about an entry that the leader restored. It does not wait.
	Tell func(events.Event)
	// Registry takes the metrics.
	Registry prometheus.Registerer
}

// Keeper keeps the webhook entries by which API servers call us for the
// Pods that SidecarSets select. It follows the configuration objects on every
// replica; there, Widen adds what a SidecarSet needs while it is being admitted.
// The leader keeps the whole: see leader.
type Keeper struct {
	options Options
	cached  cache.Cache
	store   *configurationStore
	barrier *barrier
	m       *roomMetrics
	leader  *leader // nil where controllers do not run

	// ownerless is until when objects are written without an owner, in nanoseconds;
	// see write.
	ownerless atomic.Int64
	pace      *rate.Limiter // of what Widen causes

	mu      sync.Mutex
	pending []*widening
	changed chan struct{} // has capacity 1: something is pending
}

// NewKeeper returns a Keeper. Add it to the manager, on every replica.
func NewKeeper(mgr ctrl.Manager, options Options) *Keeper {
	w := &Keeper{
		options: options,
		cached:  mgr.GetCache(),
		barrier: &barrier{
			namespace: options.Settings.Namespace, config: mgr.GetConfig(), slices: mgr.GetAPIReader(),
		},
		m:       newRoomMetrics(options.Registry),
		pace:    newWidenPace(),
		changed: make(chan struct{}, 1),
	}
	w.store = &configurationStore{live: mgr.GetAPIReader(), writer: mgr.GetClient(), notify: w.configurationsChanged}
	return w
}

func (w *Keeper) configurationsChanged() {
	if w.leader != nil {
		w.leader.wake()
	}
}

// NeedLeaderElection reports false: SidecarSets are admitted by every replica.
func (*Keeper) NeedLeaderElection() bool { return false }

// Start follows the configuration objects and widens them until ctx ends.
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

// Reviews cause so many writes at once, and then one in each interval, however many
// reviews there are: those that wait share the next write. A stranger may send them.
const (
	widenBurst    = 100
	widenInterval = 50 * time.Millisecond
)

// newWidenPace returns a bucket that a batch overdraws: how many writes it takes is known
// when it is planned. The next batch waits until that is paid back.
func newWidenPace() *rate.Limiter { return rate.NewLimiter(rate.Every(widenInterval), widenBurst) }

// settings completes the settings of the options. errUninstalling says that the operator's
// Namespace is being deleted.
func (w *Keeper) settings(ctx context.Context) (*entryplan.Settings, error) {
	s := w.options.Settings
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
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
	gone  func() error // is not nil when its review does not wait any more
}

// Widen makes API servers call the operator, on the fresh path, for the Pods that the
// SidecarSet (v1beta1) selects. It returns nil once an entry is written and every API
// server uses it. An error, at the latest when ctx ends, says why that is not so. It is
// not a reason to refuse the SidecarSet, since the leader goes on. Concurrent calls share
// their writes.
//
// Nothing proves that the SidecarSet exists or ever will. So Widen may add a provisional
// entry, and changes nothing but the path of another one.
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
	signal(w.changed)
	select {
	case err := <-widening.done:
		return err
	case <-ctx.Done():
		return errors.New("the webhook entry is not known to be in force at every API server yet")
	}
}

func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
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

// widenTimeout bounds one batch, also if no review waits for it any more.
const widenTimeout = 2 * time.Second

// widen writes what a batch needs, and tells each review when that is in force.
func (w *Keeper) widen(ctx context.Context, batch []*widening) {
	ctx, cancel := context.WithTimeout(ctx, widenTimeout)
	layout, settings, err := w.writeBatch(ctx, batch)
	if apierrors.IsInvalid(err) && len(batch) > 1 {
		cancel()
		for i := range batch { // so that one that is refused spoils no other
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

// writeBatch writes what a batch needs, and returns the objects as they are then.
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
		changes, _ := entryplan.Widen(layout, wanted, settings) // who has no room is told so
		w.pace.ReserveN(time.Now(), len(changes))
		stale := false
		for i, change := range changes {
			again, err := w.write(ctx, change)
			if err != nil {
				return entryplan.Layout{}, nil, err
			}
			if stale = stale || again; i == 0 && again {
				break // names are not recorded
			}
		}
		if !stale {
			return w.store.current(), settings, nil
		}
	}
}

// ownerlessFor is how long objects are written without an owner, once the API
// server has refused one.
const ownerlessFor = 10 * time.Minute

// write carries out a change. The admission plugin OwnerReferencesPermissionEnforcement
// lets a program set an owner only if it may delete the object. The operator may not: then
// it writes the object without an owner.
func (w *Keeper) write(ctx context.Context, change entryplan.Change) (stale bool, err error) {
	before := w.store.current()[change.Index]
	stale, err = w.store.write(ctx, change)
	if now := time.Now(); apierrors.IsForbidden(err) && before != nil && entryplan.Owner(before) != entryplan.Owner(change.Object) {
		w.ownerless.Store(now.Add(ownerlessFor).UnixNano())
	}
	w.m.wrote(stale, err)
	return stale, err
}

// tell waits until the objects that serve a batch are in force, and tells the reviews.
func (w *Keeper) tell(ctx context.Context, layout entryplan.Layout, settings *entryplan.Settings, batch []*widening) {
	waiting := map[int][]*widening{}
	for _, one := range batch {
		i, ok := layout.Serves(one.entry, settings)
		if !ok {
			one.done <- errors.New("there is no room for another webhook entry before the SidecarSet is stored, or it was removed again; the leader writes it as soon as it sees the SidecarSet")
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
