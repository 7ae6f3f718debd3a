package controllers

import (
	"context"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/sidecarset/operator/internal/status"
)

// Readiness knows which SidecarSets are in force.
type Readiness interface {
	// Of returns what is known of one generation of the SidecarSet with this name
	// and UID; nil if nothing is known. It does not wait, and is safe for
	// concurrent use.
	Of(sidecarSet string, uid types.UID, generation int64) *status.Readiness
	// Notify makes every later change of what Of returns call changed with the
	// SidecarSet's name. changed does not wait, and may be called from any
	// goroutine. Notify is called before the manager starts.
	Notify(changed func(sidecarSet string))
}

// waker adds SidecarSets to the controller's queue. Until the controller runs it
// does nothing: the controller begins with all SidecarSets anyway.
type waker struct {
	queue atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
}

// Start takes the queue; it makes the waker a source of the controller.
func (w *waker) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	w.queue.Store(&queue)
	return nil
}

// wake has a SidecarSet reconciled. It does not wait; the queue holds each name
// once.
func (w *waker) wake(sidecarSet string) {
	if queue := w.queue.Load(); queue != nil {
		(*queue).Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: sidecarSet}})
	}
}
