package snapshot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/podwebhook"
)

// minRebuildPause is the shortest pause between two rebuilds. After a longer rebuild the
// pause is rebuildShare times as long, so that rebuilds take a fifth of a core at most. It
// is maxRebuildPause at most, so this does not hold for rebuilds of more than a quarter of a
// second. The first change after a quiet time is visible immediately.
const (
	minRebuildPause = 5 * time.Millisecond
	maxRebuildPause = time.Second
	rebuildShare    = 4
)

func pauseAfter(rebuild time.Duration) time.Duration {
	return min(max(minRebuildPause, rebuildShare*rebuild), maxRebuildPause)
}

// Store follows the SidecarSets, Namespaces and ControllerRevisions in the manager's
// cache, and publishes a match.Snapshot of them. It runs on every replica. Its methods
// are safe for concurrent use. Current, Problem and Ready take no lock and do not wait.
type Store struct {
	informers Informers
	metrics   *storeMetrics

	state atomic.Pointer[storeState] // nil until all informers have synced

	mu       sync.Mutex
	pending  pendingChanges
	changed  chan struct{}      // has capacity 1: something is pending
	versions Versions           // of the SidecarSets that the snapshot has observed, and of some deleted ones
	gone     sets.Set[identity] // SidecarSets that were stored, and that the snapshot has no more
	advanced chan struct{}      // closed when versions changes
	notify   []chan<- struct{}

	// Only the goroutine of Start uses the following.
	compiled   map[string]compiledSet
	namespaces map[string]labels.Set
	revisions  map[string]*appsv1.ControllerRevision // by name
	history    map[string]compiledRevision           // by SidecarSet
}

// storeState is the state that readers get. It is immutable.
type storeState struct {
	store        *match.Snapshot
	problems     map[string]error
	dependencies map[string]podwebhook.Dependency // of all SidecarSets, also those without a compiled SidecarSet
}

// pendingChanges are the newest states of objects since the last rebuild. A deleted
// object is nil.
type pendingChanges struct {
	sidecarSets map[string]*unstructured.Unstructured
	namespaces  map[string]*metav1.PartialObjectMetadata
	revisions   map[string]*appsv1.ControllerRevision
	versions    Versions   // of the SidecarSets, the deleted ones included
	gone        []identity // also those that were stored after the last rebuild
}

// identity is of one SidecarSet. Another one with the same name has another UID.
type identity struct{ name, uid string } // the UID is short

func newPendingChanges() pendingChanges {
	return pendingChanges{
		sidecarSets: map[string]*unstructured.Unstructured{},
		namespaces:  map[string]*metav1.PartialObjectMetadata{},
		revisions:   map[string]*appsv1.ControllerRevision{},
		versions:    Versions{},
	}
}

// compiledSet is a SidecarSet in the version that was compiled last.
type compiledSet struct {
	dependency podwebhook.Dependency
	content    inject.Identity
	bytes      int              // estimate of its memory, here and in the informer
	compiled   *inject.Compiled // nil if the object cannot be used at all
	err        error
}

// Informers is the part of the manager's cache that Follow needs.
type Informers interface {
	GetInformer(ctx context.Context, object client.Object, options ...cache.InformerGetOption) (cache.Informer, error)
}

// NewStore returns a Store that uses three informers of a cache: of SidecarSets as
// unstructured v1beta1 objects, of the metadata of Namespaces, and of ControllerRevisions.
// Add it to the manager. If registry is nil, the metrics are not exposed.
func NewStore(informers Informers, registry prometheus.Registerer) *Store {
	return &Store{
		informers:  informers,
		metrics:    newStoreMetrics(registry),
		pending:    newPendingChanges(),
		changed:    make(chan struct{}, 1),
		versions:   Versions{},
		gone:       sets.New[identity](),
		advanced:   make(chan struct{}),
		compiled:   map[string]compiledSet{},
		namespaces: map[string]labels.Set{},
		revisions:  map[string]*appsv1.ControllerRevision{},
	}
}

func newSidecarSet() *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(appsv1beta1.GroupVersion.WithKind("SidecarSet"))
	return object
}

// Metadata returns the metadata of an object of a kind, for a client to fill.
func Metadata(kind schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	return object
}

// Follow calls changed with the name, the newest state and the state before of objects like
// prototype. The newest state of a deleted object is nil, and so is the state before of an
// object that was not known. All callers that follow one kind share a watch. Call Follow
// when the manager has started.
func Follow[T client.Object](ctx context.Context, informers Informers, prototype T, changed func(name string, object, before T)) (toolscache.ResourceEventHandlerRegistration, error) {
	kind := prototype.GetObjectKind().GroupVersionKind().Kind
	informer, err := informers.GetInformer(ctx, prototype, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watching kind %s: %w", kind, err)
	}
	var none T
	update := func(before, object any) {
		if object, ok := object.(T); ok {
			before, _ := before.(T)
			changed(object.GetName(), object, before)
		}
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { update(none, object) },
		UpdateFunc: update,
		DeleteFunc: func(object any) {
			name, err := toolscache.DeletionHandlingObjectToName(object)
			if err != nil {
				return
			}
			if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			gone, _ := object.(T)
			changed(name.Name, none, gone)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching kind %s: %w", kind, err)
	}
	return registration, nil
}

// NeedLeaderElection reports false: every replica decides by a Store.
func (*Store) NeedLeaderElection() bool { return false }

// Current returns the newest snapshot, which never changes; nil until all
// SidecarSets and Namespaces have been read.
func (c *Store) Current() *match.Snapshot {
	if state := c.state.Load(); state != nil {
		return state.store
	}
	return nil
}

// Problem says why the SidecarSet of that name cannot be used as it is stored;
// nil if it can, or does not exist.
func (c *Store) Problem(name string) error {
	if state := c.state.Load(); state != nil {
		return state.problems[name]
	}
	return nil
}

// Notify makes the Store send to ch, without waiting, whenever there is a new
// snapshot. Give ch a capacity of one, and call Notify before Start.
func (c *Store) Notify(ch chan<- struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notify = append(c.notify, ch)
}

// Ready is a readiness check: it fails until there is a snapshot.
func (c *Store) Ready(*http.Request) error {
	if c.state.Load() == nil {
		return errors.New("the SidecarSets, Namespaces and ControllerRevisions have not all been read yet")
	}
	return nil
}

// Start keeps the snapshot up to date until ctx ends.
//
// The watches begin in Start, not before. A manager waits for the informers that it knows
// when it starts, before it starts anything else. But SidecarSets that are stored as
// v1alpha1 cannot be listed until this process serves /convert with a certificate that the
// API server trusts.
func (c *Store) Start(ctx context.Context) error {
	logger := logf.FromContext(ctx).WithName("snapshot")
	sidecarSets, err := Follow(ctx, c.informers, newSidecarSet(), c.sidecarSetChanged)
	if err != nil {
		return err
	}
	namespaces, err := Follow(ctx, c.informers, Metadata(corev1.SchemeGroupVersion.WithKind("Namespace")), c.namespaceChanged)
	if err != nil {
		return err
	}
	revisions, err := Follow(ctx, c.informers, newControllerRevision(), c.revisionChanged)
	if err != nil {
		return err
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), sidecarSets.HasSynced, namespaces.HasSynced, revisions.HasSynced) {
		return nil // stopped before it began
	}
	for {
		took := c.rebuild(logger)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pauseAfter(took)):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.changed:
		}
	}
}

func (c *Store) sidecarSetChanged(name string, object, before *unstructured.Unstructured) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending.sidecarSets[name] = object
	if before != nil && (object == nil || object.GetUID() != before.GetUID()) {
		c.pending.gone = append(c.pending.gone, identity{name, podwebhook.ShortUID(before.GetUID())})
	}
	if object == nil {
		object = before
	}
	if object != nil {
		// A version that is not a number is 0, so WaitFor does not wait for it.
		c.pending.versions[name], _ = podstate.ParseVersion(object.GetResourceVersion())
	}
	Signal(c.changed)
}

func (c *Store) namespaceChanged(name string, object, _ *metav1.PartialObjectMetadata) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending.namespaces[name] = object
	Signal(c.changed)
}

// rebuild publishes a new snapshot if the state differs from that of the last one. It
// returns how long this took.
func (c *Store) rebuild(logger logr.Logger) time.Duration {
	start := time.Now()
	c.mu.Lock()
	pending := c.pending
	c.pending = newPendingChanges()
	c.mu.Unlock()
	setsDiffer := c.applySidecarSets(logger, pending.sidecarSets)
	namespacesDiffer := c.applyNamespaces(pending.namespaces)
	historyDiffers := c.applyRevisions(logger, pending.revisions, setsDiffer)
	differ := c.state.Load() == nil || setsDiffer || namespacesDiffer || historyDiffers
	if differ {
		c.publish()
	}
	c.advance(pending, differ)
	took := time.Since(start)
	if differ {
		c.metrics.rebuildSeconds.Observe(took.Seconds())
	}
	return took
}

// applySidecarSets compiles the SidecarSets that have changed. It returns false if none has.
func (c *Store) applySidecarSets(logger logr.Logger, changes map[string]*unstructured.Unstructured) bool {
	differ := false
	for name, object := range changes {
		if object == nil {
			delete(c.compiled, name)
			differ = true
			continue
		}
		content := inject.IdentityOf(object.Object)
		if known, ok := c.compiled[name]; ok && known.content == content {
			continue
		}
		next := compiledSet{
			dependency: podwebhook.Dependency{Name: name, UID: podwebhook.ShortUID(object.GetUID()), Generation: object.GetGeneration()},
			content:    content,
			bytes:      storedBytes(object),
		}
		if next.compiled, next.err = inject.Compile(object.Object); next.err != nil {
			logger.Error(next.err, "SidecarSet cannot be used as it is stored", "SidecarSet", name, "resourceVersion", object.GetResourceVersion())
		}
		if next.compiled != nil {
			next.bytes += next.compiled.Bytes()
		}
		c.compiled[name] = next
		differ = true
	}
	return differ
}

// applyNamespaces reports whether the labels of any Namespace differ. Snapshots share the
// map, so it replaces the map and does not change it.
func (c *Store) applyNamespaces(changes map[string]*metav1.PartialObjectMetadata) bool {
	if len(changes) == 0 {
		return false
	}
	next := maps.Clone(c.namespaces)
	for name, object := range changes {
		if object == nil {
			delete(next, name)
		} else {
			next[name] = object.Labels
		}
	}
	if maps.EqualFunc(c.namespaces, next, labels.Equals) {
		return false
	}
	c.namespaces = next
	return true
}

// publish swaps the snapshot.
func (c *Store) publish() {
	sidecarSets := make([]*inject.Compiled, 0, len(c.compiled))
	problems, dependencies := map[string]error{}, make(map[string]podwebhook.Dependency, len(c.compiled))
	bytes := 0
	for _, name := range slices.Sorted(maps.Keys(c.compiled)) {
		set := c.compiled[name]
		bytes += set.bytes
		dependencies[name] = set.dependency
		if set.compiled != nil {
			sidecarSets = append(sidecarSets, set.compiled)
		}
		if set.err != nil {
			problems[name] = set.err
		}
	}
	recorded := make(map[string]*inject.Compiled, len(c.history)) // the revisions to inject, by SidecarSet
	for name, r := range c.history {
		if r.compiled != nil {
			recorded[name] = r.compiled
			bytes += r.compiled.Bytes()
		}
	}
	c.state.Store(&storeState{store: match.Build(sidecarSets, c.namespaces).WithHistory(recorded), problems: problems, dependencies: dependencies})
	c.metrics.sidecarSets.Set(float64(len(c.compiled)))
	c.metrics.bytes.Set(float64(bytes))
	c.metrics.unusable.Set(float64(len(problems)))
	c.metrics.namespaces.Set(float64(len(c.namespaces)))
}

// Signal sends without waiting. A receiver that is behind misses nothing, because it always
// reads the newest state.
func Signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
