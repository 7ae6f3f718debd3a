package snapshot

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// watchedKind is the source of one informer. It tells a Health what comes, and connects again
// soon after an outage of the API servers; see WatchPause.
type watchedKind struct {
	toolscache.ListerWatcher // the half of the interface without contexts, which informers do not use
	source                   toolscache.ListerWatcherWithContext

	kind   string
	health *Health
}

// IsWatchListSemanticsUnSupported returns the answer of the source, so that an informer reads
// it in the same way as without watchedKind.
func (k *watchedKind) IsWatchListSemanticsUnSupported() bool {
	return watchlist.DoesClientNotSupportWatchListSemantics(k.ListerWatcher)
}

// ListWithContext tries to list until it succeeds.
func (k *watchedKind) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	list, err := persist(ctx, k.kind, func() (runtime.Object, error) { return k.source.ListWithContext(ctx, options) })
	if err == nil {
		k.see(list)
	}
	return list, err
}

// WatchWithContext tries to begin a watch until it succeeds.
func (k *watchedKind) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	events, err := persist(ctx, k.kind, func() (watch.Interface, error) { return k.source.WatchWithContext(ctx, options) })
	if err != nil {
		return nil, err
	}
	passed := make(chan watch.Event)
	w := watch.NewProxyWatcher(passed)
	go func() {
		defer close(passed)
		defer events.Stop()
		k.pass(ctx, events.ResultChan(), passed, w.StopChan())
	}()
	return w, nil
}

// pass passes events on until the watch ends, is stopped, or delivers nothing. In the last case its
// informer watches again, from the last version that it has.
func (k *watchedKind) pass(ctx context.Context, events <-chan watch.Event, passed chan<- watch.Event, stopped <-chan struct{}) {
	began, silence := time.Now(), time.NewTimer(WatchSilence)
	defer silence.Stop()
	var late <-chan struct{}
	if k.kind == appsv1beta1.Kind.Kind {
		late = k.health.late
	}
	for {
		select {
		case <-stopped:
			return
		case <-late:
			if time.Since(began) < WatchLate {
				continue
			}
		case <-silence.C:
		case event, ok := <-events:
			if !ok {
				return
			}
			silence.Reset(WatchSilence)
			k.see(event.Object)
			select {
			case <-stopped:
				return
			case passed <- event:
			}
			continue
		}
		logf.FromContext(ctx).WithName("watches").Info("A watch delivers nothing, so it begins anew", "kind", k.kind)
		return
	}
}

// see tells the Health about the version of a list, event or bookmark of SidecarSets.
func (k *watchedKind) see(object runtime.Object) {
	if k.kind != appsv1beta1.Kind.Kind {
		return
	}
	if versioned, err := meta.CommonAccessor(object); err == nil {
		k.health.see(versioned.GetResourceVersion())
	}
}
