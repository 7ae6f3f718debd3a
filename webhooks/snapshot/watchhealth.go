package snapshot

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// WatchSilence is the time without a sign of life after which a watch counts as silent. If
// nothing changes, the API server sends the first bookmark of a watch after two minutes, and
// one per minute from then on. So two bookmarks may be late.
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

// NewWatchHealth returns a WatchHealth whose NewInformer is for cache.Options. It
// reports to the Timeline the version of every SidecarSet that comes, and every list and
// watch that begins.
func NewWatchHealth(timeline *Timeline) *WatchHealth { return &WatchHealth{timeline: timeline} }

// CacheOptions are the options of the manager's cache that a Catalog needs: health observes
// the watches, objects have no managed fields, only ControllerRevisions of SidecarSets in
// one namespace are watched, and a read starts no informer. Other packages add ByObject
// options for the kinds that they read.
func CacheOptions(health *WatchHealth, revisionNamespace string) cache.Options {
	return cache.Options{
		NewInformer:                 health.NewInformer,
		ReaderFailOnMissingInformer: true,
		DefaultTransform:            stripManagedFields,
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

// stripManagedFields leaves out metadata.managedFields, which is often half of an object and
// which the operator never reads.
var stripManagedFields = cache.TransformStripManagedFields()

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
	w := &watchedKind{ListerWatcher: source, source: toolscache.ToListerWatcherWithContext(source), kind: kind, timeline: h.timeline}
	w.startAgain()
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
