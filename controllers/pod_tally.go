package controllers

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/tally"
)

const (
	// podQueueLength is the number of events that may wait for the tally: at two
	// microseconds each, two milliseconds.
	podQueueLength = 1024
	// reportEvery is how many changes of the tally are reported at once, while more
	// of them wait.
	reportEvery = 64
	// settleEvery is how often the tally looks for Pods that changed without an event.
	settleEvery = time.Second
)

// podTally runs the Pod watch, and the one goroutine that owns the tally. All
// others, the watch and the reconciler, give it functions to run.
type podTally struct {
	sets       SidecarSets
	source     cache.ListerWatcher
	nodeSource cache.ListerWatcher // nil: no Node counts as gone
	m          *collectors
	// changed is called with the name of each SidecarSet whose count has changed. It
	// does not wait, and is set before Start.
	changed func(sidecarSet string)
	// dueChanged is called with the name of each SidecarSet of which more Pods may have to
	// be written. It does not wait, and is set before Start.
	dueChanged func(sidecarSet string)
	// unrecorded is called with the name of each SidecarSet whose content is to be recorded
	// before Pods are updated. It does not wait, and is set before Start.
	unrecorded func(sidecarSet string)
	pause      *wait.Backoff // between two attempts of the watch; set before Start

	work    chan func(*tally.Tally)
	catalog chan struct{} // receives a value for each new snapshot

	// The rest belongs to the goroutine that Start runs.

	tally *tally.Tally
	// synced is true once every Pod was seen; until then nothing is reported.
	synced     bool
	unreported int // changes of the tally since the last report
	settle     *time.Ticker
}

// counted is what the tally knows of one SidecarSet.
type counted struct {
	tally.State
	// Synced is false as long as Pods may be missing. All SidecarSets are reported
	// when that is over.
	Synced bool
}

func newPodTally(sets SidecarSets, source cache.ListerWatcher, excluded inject.Exclusions, m *collectors) *podTally {
	p := &podTally{
		sets:       sets,
		source:     source,
		m:          m,
		work:       make(chan func(*tally.Tally), podQueueLength),
		catalog:    make(chan struct{}, 1),
		tally:      tally.New(excluded),
		changed:    func(string) {},
		dueChanged: func(string) {},
		unrecorded: func(string) {},
	}
	sets.Notify(p.catalog)
	return p
}

// NeedLeaderElection returns true: other replicas do not need the memory for all Pods.
func (p *podTally) NeedLeaderElection() bool { return true }

// Start counts Pods until ctx ends. It runs once.
func (p *podTally) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("pods")
	store := &podStore{
		do:     func(f func(*tally.Tally)) error { return p.do(ctx, f) },
		synced: func() { p.synced = true },
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

// own runs all functions that use the tally, until ctx ends.
func (p *podTally) own(ctx context.Context) {
	p.settle = time.NewTicker(settleEvery)
	defer p.settle.Stop()
	p.tally.Settle(time.Now()) // so that the tally knows the time when it gets the first Pod
	p.takeCatalog()
	for p.step(ctx) {
	}
}

// step handles the next function, snapshot or tick; it returns false if ctx has ended.
func (p *podTally) step(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case f := <-p.work:
		f(p.tally)
	case <-p.catalog:
		p.takeCatalog()
	case <-p.settle.C:
		p.tally.Settle(time.Now())
	}
	if p.unreported++; p.unreported >= reportEvery || len(p.work) == 0 {
		p.report()
	}
	return true
}

// report calls changed and dueChanged for the SidecarSets that have changed since the
// last report.
func (p *podTally) report() {
	p.unreported = 0
	if p.synced {
		p.tally.Unrecorded(p.unrecorded)
		p.tally.Changed(p.changed)
		p.tally.DueChanged(p.dueChanged)
	}
	p.m.trackedPods.Set(float64(p.tally.Pods()))
	p.m.uncountedPods.Set(float64(p.tally.Uncounted()))
}

func (p *podTally) takeCatalog() {
	if catalog := p.sets.Current(); catalog != nil {
		p.tally.SetSnapshot(catalog)
	}
}

// do runs f in the owner's goroutine, after all functions passed before. It waits while
// the queue is full.
func (p *podTally) do(ctx context.Context, f func(*tally.Tally)) error {
	select {
	case p.work <- f:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// count returns the numbers of a SidecarSet. Later changes are reported.
func (p *podTally) count(ctx context.Context, sidecarSet string) (counted, error) {
	var answer counted
	err := p.ask(ctx, func(t *tally.Tally) { answer = counted{t.State(sidecarSet), p.synced} })
	if err != nil {
		return counted{}, err
	}
	return answer, nil
}

// ask runs f in the owner's goroutine, and waits for it.
func (p *podTally) ask(ctx context.Context, f func(*tally.Tally)) error {
	done := make(chan struct{})
	err := p.do(ctx, func(t *tally.Tally) {
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
