package controllers

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/status"
)

// pace spaces the writes of each SidecarSet's status. It is safe for concurrent
// use.
//
// The first status of a new generation is written when it is ready, or after a timeout
// (patience). Most SidecarSets are ready within that time, so that one write is enough. 500
// SidecarSets that are created at once take longer. Statuses that only report this would slow
// them down more. The first time that a generation is ready is written at once, because a user
// may wait for it.
//
// From then on the status is written when its counters have not changed for the time
// calm, and at the latest when the last write is longest ago: in a rollout counters
// change all the time, and each write costs the API server as much as the update of a
// Pod. There are never two writes within writeInterval.
type pace struct {
	mu    sync.Mutex
	known map[string]paced
}

// paced is about one generation of one object.
type paced struct {
	uid        types.UID
	generation int64
	from       time.Time // when it was first seen, or last written
	changed    time.Time // when the last change of counters was announced
	written    bool
	ready      bool // a write has said that it is ready
	readyNow   bool // the last write has said so
}

func newPace() *pace {
	return &pace{known: make(map[string]paced)}
}

// patience is how long a generation waits for its first status, given its readiness: longer if
// its webhook entry is not in force yet, or if the leader has not looked at it yet.
func (p *pace) patience(readiness *status.Readiness) time.Duration {
	if readiness == nil || readiness.Reason == appsv1beta1.ReasonNotInForce {
		return entryPatience
	}
	return writeInterval
}

// rest is how long to wait before a status with this readiness is written for a
// generation of a SidecarSet. The first call for a generation begins its patience.
func (p *pace) rest(sidecarSet string, uid types.UID, generation int64, readiness *status.Readiness, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.known[sidecarSet]
	if !ok || known.uid != uid || known.generation != generation {
		known = paced{uid: uid, generation: generation, from: now}
		p.known[sidecarSet] = known
	}
	switch {
	case readiness != nil && readiness.Ready && !known.ready:
		return 0
	case !known.written:
		return left(known.from, p.patience(readiness), now)
	case readiness != nil && readiness.Ready != known.readyNow:
		return left(known.from, writeInterval, now)
	}
	return p.spaced(known, now)
}

// spaced is how long to wait before a status that was written is written again.
func (p *pace) spaced(known paced, now time.Time) time.Duration {
	return max(left(known.from, writeInterval, now), min(left(known.changed, calm, now), left(known.from, longest, now)))
}

// left is how much of a time is left. A clock that is set back does not make it
// longer.
func left(from time.Time, whole time.Duration, now time.Time) time.Duration {
	return max(0, min(whole, from.Add(whole).Sub(now)))
}

// counted records that counters have changed, and returns how long to wait before they can be
// written.
func (p *pace) counted(sidecarSet string, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.known[sidecarSet]
	if !ok {
		return 0
	}
	known.changed = now
	p.known[sidecarSet] = known
	return p.spaced(known, now)
}

// wrote begins the next interval.
func (p *pace) wrote(sidecarSet string, ready bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[sidecarSet]
	known.from, known.written, known.ready, known.readyNow = now, true, known.ready || ready, ready
	p.known[sidecarSet] = known
}

func (p *pace) forget(sidecarSet string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, sidecarSet)
}

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
