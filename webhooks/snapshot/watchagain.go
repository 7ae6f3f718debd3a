package snapshot

import (
	"context"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
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
			logf.FromContext(ctx).WithName("watches").Info("Cannot be read; trying again", "kind", kind, "reason", err.Error())
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
