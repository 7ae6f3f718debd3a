package snapshot

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// WatchSilence is after how long without a sign of life a watch counts as
// silent. Where nothing changes the API server sends the first bookmark of a
// watch after two minutes and one per minute from then on; this allows for two
// that are late.
const WatchSilence = 4 * time.Minute

// WatchHealth notices when one of the cache's watches has gone silent: the connection
// is open, but nothing comes through it, so this replica would decide by an old state
// of the cluster. Every event is a sign of life, also a bookmark, and so is every
// successful list and reconnection. Resource versions do not count, because the
// bookmarks of an idle kind repeat one.
//
// After an outage of the API servers, an observed watch begins again within seconds.
// If the cluster's state was restored meanwhile, the new watch stays behind for ever,
// though it gives signs of life. The Timeline notices that.
type WatchHealth struct {
	timeline *Timeline

	mu      sync.Mutex
	watches []*watchedKind
}

// watchedKind is one informer's source.
type watchedKind struct {
	source   toolscache.ListerWatcherWithContext
	plain    toolscache.ListerWatcher
	kind     string
	timeline *Timeline
	last     atomic.Pointer[time.Time] // of the last sign of life
}

// NewWatchHealth returns a WatchHealth whose NewInformer is for cache.Options. It
// reports to the Timeline the version of every SidecarSet that comes, and every list and
// watch that begins.
func NewWatchHealth(timeline *Timeline) *WatchHealth { return &WatchHealth{timeline: timeline} }

// CacheOptions are what a Catalog expects of the manager's cache: health observes its
// watches, managed fields are left out, ControllerRevisions are those of SidecarSets
// in one namespace, and a read starts no informer. Other packages add ByObject options
// for the kinds that they read.
func CacheOptions(health *WatchHealth, revisionNamespace string) cache.Options {
	return cache.Options{
		NewInformer:                 health.NewInformer,
		ReaderFailOnMissingInformer: true,
		DefaultTransform:            StripManagedFields,
		ByObject: map[client.Object]cache.ByObject{
			newSidecarSet(): {Transform: PackSidecarSet},
			&appsv1.ControllerRevision{}: {
				Namespaces: map[string]cache.Config{revisionNamespace: {}},
				Label:      carriesSidecarSet(),
			},
		},
	}
}

// carriesSidecarSet selects the ControllerRevisions of SidecarSets.
func carriesSidecarSet() labels.Selector {
	requirement, err := labels.NewRequirement(appsv1beta1.LabelSidecarSetName, selection.Exists, nil)
	if err != nil { // of a constant
		panic(err)
	}
	return labels.NewSelector().Add(*requirement)
}

// StripManagedFields is a transform for informers. It leaves out metadata.managedFields,
// which is often half of an object and which the operator never reads. Applying it
// twice does no harm.
func StripManagedFields(object any) (any, error) {
	if object, ok := object.(metav1.Object); ok && object.GetManagedFields() != nil {
		object.SetManagedFields(nil)
	}
	return object, nil
}

// NewInformer is NewSharedIndexInformer with its watch observed.
func (h *WatchHealth) NewInformer(source toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(h.Observe(source, kindOf(object)), object, resync, indexers)
}

func kindOf(object runtime.Object) string {
	if kind := object.GetObjectKind().GroupVersionKind().Kind; kind != "" {
		return kind
	}
	return fmt.Sprintf("%T", object)
}

// Observe wraps a source so that its signs of life are noted under kind.
func (h *WatchHealth) Observe(source toolscache.ListerWatcher, kind string) toolscache.ListerWatcher {
	w := &watchedKind{source: toolscache.ToListerWatcherWithContext(source), plain: source, kind: kind, timeline: h.timeline}
	w.touch()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watches = append(h.watches, w)
	return w
}

// Ready is a readiness check: it fails while a watch is silent, and names its
// kind.
func (h *WatchHealth) Ready(*http.Request) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.watches {
		if silent := time.Since(*w.last.Load()); silent > WatchSilence {
			return fmt.Errorf("the watch of kind %s has been silent for %s", w.kind, silent.Round(time.Second))
		}
	}
	return nil
}

// touch notes a sign of life. The time has a monotonic reading, so setting the clock
// does not matter.
func (w *watchedKind) touch() { w.last.Store(new(time.Now())) }

// List implements the older half of ListerWatcher.
func (w *watchedKind) List(options metav1.ListOptions) (runtime.Object, error) {
	return w.listed(w.plain.List(options)) //nolint:staticcheck // part of the interface
}

// Watch implements the older half of ListerWatcher.
func (w *watchedKind) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return w.follow(w.plain.Watch(options)) //nolint:staticcheck // part of the interface
}

// ListWithContext lists until that succeeds, which counts.
func (w *watchedKind) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return w.listed(persist(ctx, w.kind, func() (runtime.Object, error) { return w.source.ListWithContext(ctx, options) }))
}

func (w *watchedKind) listed(list runtime.Object, err error) (runtime.Object, error) {
	if err != nil {
		return list, err
	}
	w.touch()
	w.see(list)
	signal(w.timeline.reconnected)
	return list, nil
}

// see tells the Timeline of SidecarSets.
func (w *watchedKind) see(object runtime.Object) {
	if w.kind == appsv1beta1.Kind.Kind {
		w.timeline.see(object)
	}
}

// WatchWithContext connects until that succeeds, which counts, and so do all events.
func (w *watchedKind) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return w.follow(persist(ctx, w.kind, func() (watch.Interface, error) { return w.source.WatchWithContext(ctx, options) }))
}

// IsWatchListSemanticsUnSupported passes on what the source says about itself,
// so that observing it does not change how it is read.
func (w *watchedKind) IsWatchListSemanticsUnSupported() bool {
	return watchlist.DoesClientNotSupportWatchListSemantics(w.plain)
}

func (w *watchedKind) follow(events watch.Interface, err error) (watch.Interface, error) {
	if err != nil {
		return nil, err
	}
	w.touch()
	signal(w.timeline.reconnected)
	return watch.Filter(events, func(event watch.Event) (watch.Event, bool) {
		w.touch()
		if event.Type != watch.Error {
			w.see(event.Object)
		}
		return event, true
	}), nil
}
