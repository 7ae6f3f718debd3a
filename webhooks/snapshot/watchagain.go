package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
)

// WatchPause is the time between two attempts: from a quarter of a second to five
// seconds, each up to half as long again. client-go's own pause grows to a minute. After an
// outage of the API servers, this replica would refuse the Pods of changed SidecarSets for
// that long.
var WatchPause = wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 5 * time.Second}

// persist calls attempt until it succeeds, ctx ends, or it fails for a reason that
// the caller has to act on, such as a resourceVersion that is too old. It is for the
// sources of informers, which offer no choice of pauses. kind is for the log.
func persist[T any](ctx context.Context, kind string, attempt func() (T, error)) (result T, err error) {
	failed := false
	_ = WatchPause.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (done bool, _ error) { // if ctx ends, err is of the last attempt
		result, err = attempt()
		done = err == nil || ctx.Err() != nil || !heals(err)
		if !done && !failed {
			logf.FromContext(ctx).WithName("watches").Info("Failed to list or watch objects; trying again", "kind", kind, "reason", err.Error())
			failed = true
		}
		return done, nil
	})
	return result, err
}

// heals reports whether an error may end without a change of the request: there is no
// answer, the API server is not healthy, or it has just started and has not read the
// rights of its users.
func heals(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return !errors.Is(err, context.Canceled)
	}
	if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		return false
	}
	code := answer.Status().Code
	return code >= http.StatusInternalServerError ||
		code == http.StatusTooManyRequests || code == http.StatusUnauthorized || code == http.StatusForbidden
}

// persistent is the source of one informer. It connects again soon after an outage of the API servers; see WatchPause.
type persistent struct {
	toolscache.ListerWatcher // the half of the interface without contexts, which informers do not use
	source                   toolscache.ListerWatcherWithContext
	kind                     string
}

// newInformer is NewSharedIndexInformer with a persistent source.
func newInformer(source toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
	kind := cmp.Or(object.GetObjectKind().GroupVersionKind().Kind, fmt.Sprintf("%T", object))
	return toolscache.NewSharedIndexInformer(&persistent{source, toolscache.ToListerWatcherWithContext(source), kind}, object, resync, indexers)
}

// IsWatchListSemanticsUnSupported returns the answer of the source.
func (p *persistent) IsWatchListSemanticsUnSupported() bool {
	return watchlist.DoesClientNotSupportWatchListSemantics(p.ListerWatcher)
}

// ListWithContext tries to list until it succeeds.
func (p *persistent) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return persist(ctx, p.kind, func() (runtime.Object, error) { return p.source.ListWithContext(ctx, options) })
}

// WatchWithContext tries to begin a watch until it succeeds.
func (p *persistent) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return persist(ctx, p.kind, func() (watch.Interface, error) { return p.source.WatchWithContext(ctx, options) })
}
