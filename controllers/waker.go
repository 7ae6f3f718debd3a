package controllers

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// waker adds SidecarSets to the controller's queue, which holds each name once.
// Until the controller runs it does nothing: the controller begins with all
// SidecarSets anyway.
type waker struct {
	queue atomic.Pointer[workqueue.TypedRateLimitingInterface[reconcile.Request]]
}

// Start takes the queue; it makes the waker a source of the controller.
func (w *waker) Start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	w.queue.Store(&queue)
	return nil
}

// after requests a reconcile of a SidecarSet after a delay, or earlier if one is due.
// It does not wait.
func (w *waker) after(sidecarSet string, delay time.Duration) {
	if queue := w.queue.Load(); queue != nil {
		(*queue).AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: sidecarSet}}, delay)
	}
}
