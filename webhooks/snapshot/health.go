package snapshot

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

const (
	// lookEvery is how often Health looks at the version of etcd.
	lookEvery = 10 * time.Second
	// LowAgain is the time after which a version is read again that is lower than one that was seen.
	// One such reading does not mean a restore: a database behind etcd's API may have been read at
	// a copy that is behind.
	LowAgain = time.Second
	// WatchSilence is the time without an event after which a watch is begun anew. If nothing
	// changes, the API server sends the first bookmark of a watch after two minutes, and one
	// per minute from then on. So two bookmarks may be late.
	WatchSilence = 4 * time.Minute
	// WatchLate is the time after which a watch is begun anew if it has not delivered what a
	// read by name showed. A watch usually takes some milliseconds.
	WatchLate = 2 * time.Second
)

// Health begins watches anew that deliver nothing, and notices that the cluster's state was
// restored from a backup. It makes no replica un-ready: a call for a Pod says what must be
// known, so a replica with a silent watch does not answer by what is out of date.
//
// After a restore, the watches ask for the changes after a version that etcd has not reached
// again. So they stay silent, and the snapshot holds SidecarSets that are not stored any more.
// What is read from etcd is never older than what was seen before the read began. If it is, twice
// in a row, etcd was restored, and the process has to end. Only versions of SidecarSets are compared, because
// API servers may keep other kinds in another etcd.
//
// A Health is safe for concurrent use.
type Health struct {
	converter   string      // the host that API servers call for conversions, if it is this operator
	unconverted atomic.Bool // SidecarSets could not be listed once, because the converter did not answer

	newest   atomic.Uint64 // the highest version of a SidecarSet, or of a list or bookmark of them, that was seen
	restored chan error    // has capacity 1
	late     chan struct{} // the watch of SidecarSets receives from it
}

// NewHealth returns a Health whose NewInformer is for cache.Options. converter is the host under which API servers
// call this operator.
func NewHealth(converter string) *Health {
	return &Health{converter: converter, restored: make(chan error, 1), late: make(chan struct{})}
}

// NewInformer is NewSharedIndexInformer with its watch observed.
func (h *Health) NewInformer(source toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	kind := object.GetObjectKind().GroupVersionKind().Kind
	if kind == "" {
		kind = fmt.Sprintf("%T", object)
	}
	return toolscache.NewSharedIndexInformer(&watchedKind{source, toolscache.ToListerWatcherWithContext(source), kind, h}, object, resync, indexers)
}

// Unconverted reports whether SidecarSets could not be read because some replica has to convert them: an older version
// stored them as v1alpha1, and no replica is ready, so that API servers call none. It stays so: a replica that were not
// ready again before it has read them could not convert the rest.
func (h *Health) Unconverted() bool { return h.unconverted.Load() }

// Run looks every ten seconds, with live, until ctx ends; before SidecarSets were read, every second. It returns an error if the cluster's
// state was restored: the process has to end.
func (h *Health) Run(ctx context.Context, live client.Reader) error {
	for {
		pause := lookEvery
		if h.newest.Load() == 0 {
			pause = time.Second
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-h.restored:
			return err
		case <-time.After(pause):
		}
		if err := h.compare(ctx, live); err != nil {
			return err
		}
	}
}

// compare lists SidecarSets as they are stored, to get the version of etcd. Two lists in a row with a
// lower version than was seen before mean that etcd was restored.
func (h *Health) compare(ctx context.Context, live client.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	newest := h.newest.Load()
	version, err := Confirmed(ctx, newest, func(ctx context.Context) (uint64, error) {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(appsv1beta1.GroupVersion.WithKind(appsv1beta1.Kind.Kind + "List"))
		limit := client.Limit(1)
		if newest == 0 {
			limit = 500 // any of them may need a conversion; without a limit, an API server lists nothing until it has read all itself
		}
		err := live.List(ctx, list, limit)
		if err != nil {
			if strings.Contains(err.Error(), "conversion webhook for ") && strings.Contains(err.Error(), h.converter) {
				h.unconverted.Store(true)
			}
			return 0, err
		}
		h.see(list.ResourceVersion)
		return podstate.ParseVersion(list.ResourceVersion) // a version that is not a number has no order
	})
	switch {
	case err != nil:
		logf.FromContext(ctx).WithName("watches").V(1).Info("Could not list SidecarSets", "reason", err.Error())
		return nil
	case version < newest:
		return h.Restored("the list of SidecarSets", newest, version)
	}
	return nil
}

// Confirmed returns the version that read returns. If it is lower than one that was seen before, it
// reads once more, after LowAgain.
func Confirmed(ctx context.Context, seen uint64, read func(context.Context) (uint64, error)) (uint64, error) {
	version, err := read(ctx)
	if err != nil || version >= seen {
		return version, err
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(LowAgain):
		return read(ctx)
	}
}

// see notes the version of a SidecarSet, or of a list or bookmark of them.
func (h *Health) see(resourceVersion string) {
	version, err := podstate.ParseVersion(resourceVersion)
	if err != nil {
		return // a version that is not a number has no order
	}
	for {
		newest := h.newest.Load()
		if version <= newest || h.newest.CompareAndSwap(newest, version) {
			return
		}
	}
}

// Restored notes that an object is stored in an older version than this process had seen before
// it was read. It makes Run end, and returns the reason for the request at hand.
func (h *Health) Restored(object string, seen, stored uint64) error {
	err := fmt.Errorf("the cluster's state (etcd) was restored from a backup: %s is of resourceVersion %d now, and this process has seen %d; "+
		"it ends, so that it starts again with what is stored", object, stored, seen)
	select {
	case h.restored <- err:
	default: // it is known
	}
	return err
}

// Late notes that the watch of SidecarSets has not delivered for WatchLate what a read showed.
// The watch begins anew, unless it has just begun.
func (h *Health) Late() { Signal(h.late) }
