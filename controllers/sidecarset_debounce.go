package controllers

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// debounce spaces the passes over the Pods of each SidecarSet, and the writes of its status. It is
// safe for concurrent use.
//
// A pass follows the one before after quietInterval, or after busyInterval while Pods can be written.
// An edit and a change of readiness do not wait. A status is written once in writeInterval. The first
// one of a generation waits as long for the SidecarSet to be ready: most are by then, and one write
// is enough. The first time that a generation is ready is written immediately, because a user may wait
// for it.
type debounce struct {
	mu    sync.Mutex
	known map[string]*paced
}

// paced is about one generation of one object.
type paced struct {
	uid        types.UID
	generation int64
	passed     time.Time     // when the last pass began; zero: the next one need not wait
	interval   time.Duration // from then to the next one
	from       time.Time     // when the generation was first seen, or its status was last written
	ready      bool          // a write has said that it is ready
}

const (
	// quietInterval is the time from one pass to the next while no Pod can be written, and
	// busyInterval while some can.
	quietInterval, busyInterval = time.Second, 100 * time.Millisecond
	// passShare bounds the time that the passes of one SidecarSet take: they take one part of so
	// many, however many Pods there are.
	passShare = 40
)

func newDebounce() *debounce { return &debounce{known: make(map[string]*paced)} }

// begin returns how long to wait for the next pass; 0 if it begins now.
func (d *debounce) begin(sidecarSet string, uid types.UID, generation int64, now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.known[sidecarSet]
	if p == nil || p.uid != uid || p.generation != generation {
		p = &paced{uid: uid, generation: generation, from: now, interval: busyInterval}
		d.known[sidecarSet] = p
	}
	if wait := left(p.passed, p.interval, now); wait > 0 {
		return wait
	}
	p.passed = now
	return 0
}

// passed sets the time to the next pass, after one that took so long.
func (d *debounce) passed(sidecarSet string, busy bool, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.known[sidecarSet]; p != nil {
		p.interval = quietInterval
		if busy {
			p.interval = busyInterval
		}
		p.interval = max(p.interval, passShare*took)
	}
}

// next is how long to wait for the next pass.
func (d *debounce) next(sidecarSet string, now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.known[sidecarSet]; p != nil {
		return left(p.passed, p.interval, now)
	}
	return 0
}

// expedite makes the next pass wait for nothing.
func (d *debounce) expedite(sidecarSet string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.known[sidecarSet]; p != nil {
		p.passed = time.Time{}
	}
}

// unwritable is how long to wait before a status is written. ready: it says that the SidecarSet is.
func (d *debounce) unwritable(sidecarSet string, ready bool, now time.Time) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.known[sidecarSet]
	if p == nil || ready && !p.ready {
		return 0
	}
	return left(p.from, writeInterval, now)
}

// wrote begins the next interval of writes.
func (d *debounce) wrote(sidecarSet string, ready bool, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.known[sidecarSet]; p != nil {
		p.from, p.ready = now, p.ready || ready
	}
}

func (d *debounce) forget(sidecarSet string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, sidecarSet)
}

// left is how much of a time is left. A clock that is set back does not make it
// longer.
func left(from time.Time, whole time.Duration, now time.Time) time.Duration {
	if from.IsZero() {
		return 0
	}
	return max(0, min(whole, from.Add(whole).Sub(now)))
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
