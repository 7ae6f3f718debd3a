package controllers

import (
	"context"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/tracker"
)

const (
	// podQueueLength is the number of events that may wait for the tracker: at two
	// microseconds each, two milliseconds.
	podQueueLength = 1024
	// reportEvery is how many changes of the tracker are reported together, while more
	// of them wait.
	reportEvery = 64
)

// podTracker runs the Pod watch, and the one goroutine that owns the tracker. All
// others, the watch, the reconciler and the executor, give it functions to run.
type podTracker struct {
	sets       SidecarSets
	source     cache.ListerWatcher
	nodeSource cache.ListerWatcher // nil: no Node counts as gone
	m          *collectors
	// changed is called with the name of each SidecarSet whose next pass may differ; edited: the
	// SidecarSet itself has changed. It does not wait, and is set before Start.
	changed func(sidecarSet string, edited bool)
	pause   *wait.Backoff // between two attempts of the watch; set before Start

	work  chan func(*tracker.Tracker)
	store chan struct{} // receives a value for each new snapshot
	// synced is true once every Pod was seen; until then nothing is reported.
	synced atomic.Bool

	// The rest belongs to the goroutine that Start runs.

	tracker    *tracker.Tracker
	unreported int // changes of the tracker since the last report
}

func newPodTracker(sets SidecarSets, source cache.ListerWatcher, excluded inject.Exclusions, m *collectors) *podTracker {
	p := &podTracker{
		sets:    sets,
		source:  source,
		m:       m,
		work:    make(chan func(*tracker.Tracker), podQueueLength),
		store:   make(chan struct{}, 1),
		tracker: tracker.New(excluded),
		changed: func(string, bool) {},
	}
	sets.Notify(p.store)
	return p
}

// NeedLeaderElection returns true: other replicas do not need the memory for all Pods.
func (p *podTracker) NeedLeaderElection() bool { return true }

// Start tracks Pods until ctx ends. It runs once.
func (p *podTracker) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("pods")
	store := &podStore{
		do:     func(f func(*tracker.Tracker)) error { return p.do(ctx, f) },
		synced: func() { p.synced.Store(true) },
		events: p.m.podEvents,
	}
	reflector := cache.NewReflectorWithOptions(p.source, &corev1.Pod{}, store,
		cache.ReflectorOptions{Name: "pods", Logger: &logger, Backoff: p.pause})
	reflector.WatchListPageSize = podPageSize
	// Not waited for: a reflector that backs off takes seconds to see that ctx
	// ended, and leadership is released only after Start.
	go reflector.RunWithContext(ctx)
	if p.nodeSource != nil {
		nodes := cache.NewReflectorWithOptions(p.nodeSource, &corev1.Node{}, nodeStore{store.do}, cache.ReflectorOptions{Name: "nodes", Logger: &logger, Backoff: p.pause})
		go nodes.RunWithContext(ctx)
	}
	p.own(ctx)
	return nil
}

// own runs all functions that use the tracker, until ctx ends.
func (p *podTracker) own(ctx context.Context) {
	p.takeStore()
	for p.step(ctx) {
	}
}

// step handles the next function or snapshot; it returns false if ctx has ended.
func (p *podTracker) step(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case f := <-p.work:
		p.tracker.SetTime(time.Now())
		f(p.tracker)
	case <-p.store:
		p.takeStore()
	}
	if p.unreported++; p.unreported >= reportEvery || len(p.work) == 0 {
		p.report()
	}
	return true
}

// report calls changed for the SidecarSets that have changed since the last report.
func (p *podTracker) report() {
	p.unreported = 0
	if p.synced.Load() {
		p.tracker.Changed(p.changed)
	}
	p.m.trackedPods.Set(float64(p.tracker.Pods()))
	p.m.uncountedPods.Set(float64(p.tracker.Uncounted()))
}

func (p *podTracker) takeStore() {
	if store := p.sets.Current(); store != nil {
		p.tracker.SetTime(time.Now())
		p.tracker.SetSnapshot(store)
	}
}

// do runs f in the owner's goroutine, after all functions passed before. It waits while
// the queue is full.
func (p *podTracker) do(ctx context.Context, f func(*tracker.Tracker)) error {
	select {
	case p.work <- f:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pass looks at the Pods of a SidecarSet. It returns false if the tracker has another compiled SidecarSet of it.
func (p *podTracker) pass(ctx context.Context, current tracker.Current) (tracker.Pass, time.Duration, bool, error) {
	var result tracker.Pass
	var took time.Duration
	var ok bool
	err := p.ask(ctx, func(t *tracker.Tracker) {
		begin := time.Now()
		result, ok = t.Pass(current)
		took = time.Since(begin)
	})
	if err != nil {
		return tracker.Pass{}, 0, false, err
	}
	return result, took, ok, nil
}

// ask runs f in the owner's goroutine, and waits for it. If it fails, f may still be running.
func (p *podTracker) ask(ctx context.Context, f func(*tracker.Tracker)) error {
	done := make(chan struct{})
	err := p.do(ctx, func(t *tracker.Tracker) {
		f(t)
		close(done)
	})
	if err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
