package executor

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

const (
	// writesPerSet is how many Pods of one SidecarSet are written at the same time,
	// and writesInAll how many of all SidecarSets.
	writesPerSet, writesInAll = 8, 64
	// staleWait is how long a Pod rests that was not what its queue believed. The Pod
	// watch brings the truth, usually within milliseconds.
	staleWait = time.Second
	// refusalWait is how long a Pod rests that the API server refused to update: most
	// refusals are lifted by people. failureWait is that of one whose update failed.
	refusalWait, failureWait = 5 * time.Minute, 10 * time.Second
	// nodeWait is how long a Pod rests whose Node cannot act on a change.
	nodeWait = time.Minute
)

// Source has the queues of all SidecarSets. Its methods fail only when ctx ends.
type Source interface {
	// Take takes at most n Pods of a SidecarSet that may be written now: from its queue,
	// or since they have a chore.
	Take(ctx context.Context, sidecarSet string, n int) (Batch, error)
	// Do has the queue's owner run a function, unless the SidecarSet has no queue. What
	// may be written then is announced by Wake.
	Do(ctx context.Context, sidecarSet string, f func(*rollout.Queue)) error
	// Evicted gives back a Pod that was taken to be evicted, and was.
	Evicted(ctx context.Context, sidecarSet string, take rollout.Take) error
	// NotEvicted says that a Pod was not evicted that was taken for that. It is given
	// back by Do.
	NotEvicted(ctx context.Context, sidecarSet string, take rollout.Take) error
	// SetStuck says why a Pod that was taken cannot follow a Program in place, although the
	// Pod watch does not show it; with an empty reason, that it can.
	SetStuck(ctx context.Context, program *inject.Program, take rollout.Take, reason inplace.Reason) error
	// CheckChore lets a Pod that was taken for a chore be taken again.
	CheckChore(ctx context.Context, sidecarSet string, pod Name) error
	// Overdue returns at most n Pods that are in flight and not ready, and were so at the
	// last call.
	Overdue(ctx context.Context, sidecarSet string, n int) ([]Name, error)
	// Lost says that the Node of a Pod is not ready or gone.
	Lost(ctx context.Context, pod Name) error
}

// Batch is what a pass works on.
type Batch struct {
	// Program is what the Pods are to follow.
	Program *inject.Program
	// Since is for tally.MayEvict.
	Since int64
	// Contents is about the Program.
	Contents tally.Contents
	// Updates are given back to the queue, each once.
	Updates []rollout.Take
	// Chores are Pods whose hot upgrade has to be ended, or whose condition
	// SidecarSetUpgradable is not what it has to be.
	Chores []Chore
}

// Chore is a Pod that is written apart from its queue.
type Chore struct {
	Name
	// FirstWord: the condition SidecarSetUpgradable of the Pod says nothing yet, and is
	// to say that the Pod can be updated.
	FirstWord bool
}

// Name names a Pod.
type Name struct {
	UID             types.UID
	Namespace, Name string
}

// Executor writes Pods while it runs. It is made by New.
type Executor struct {
	Options
	queue   workqueue.TypedDelayingInterface[item]
	slots   chan struct{}
	nodes   *nodes
	known   *revisions
	resizes resizes
	limit   flowcontrol.RateLimiter
	updates *prometheus.CounterVec
	// evictions and patience are about Pods that are evicted.
	evictions *prometheus.CounterVec
	patience  *patience
	running   sync.WaitGroup

	mu   sync.Mutex
	busy map[string]int // writes under way, by SidecarSet
}

// item is a SidecarSet to look at. If it has a Pod, that one has rested.
type item struct {
	sidecarSet string
	take       rollout.Take // to be given back
	held       types.UID    // to be released
	chore      Name         // to be looked at again
	overdue    bool         // the Nodes of Pods that do not come back are to be looked at
}

// Options are what an Executor works with.
type Options struct {
	Source Source
	// Current is the latest snapshot.
	Current func() *match.Snapshot
	Pods    corev1client.PodsGetter
	Nodes   corev1client.NodesGetter
	// Revision reads a ControllerRevision, or says that it is not found. It is asked
	// for each Pod, so it should read from a cache. May be nil.
	Revision func(ctx context.Context, name string) (*appsv1.ControllerRevision, error)
	// Tell writes Events about Pods. It does not wait.
	Tell func(events.Event)
	// QPS bounds the requests for Pods in a second; 0 is no bound.
	QPS int
	// Leadership is nil in a process that leads alone.
	Leadership *Leadership
	Registry   prometheus.Registerer
}

// New returns an Executor. It registers its metrics, and panics if they are
// registered already.
func New(o Options) *Executor {
	limit := flowcontrol.NewFakeAlwaysRateLimiter()
	if o.QPS > 0 {
		limit = flowcontrol.NewTokenBucketRateLimiter(float32(o.QPS), o.QPS)
	}
	return &Executor{
		Options:  o,
		queue:    workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[item]{Name: "rollout"}),
		slots:    make(chan struct{}, writesInAll),
		nodes:    newNodes(o.Nodes),
		known:    newRevisions(o.Revision),
		limit:    limit,
		patience: newPatience(),
		evictions: promauto.With(o.Registry).NewCounterVec(prometheus.CounterOpts{
			Name: "sidecarset_pod_evictions_total",
			Help: "Pods that were to be evicted, by result: evicted, protected (by a PodDisruptionBudget), refused (by the API server), failed (tried again), stale (not what the watch had said).",
		}, []string{"result"}),
		busy: map[string]int{},
		updates: promauto.With(o.Registry).NewCounterVec(prometheus.CounterOpts{
			Name: "sidecarset_pod_updates_total",
			Help: "Pods that were to be updated in place, by result: written, refused (by the API server or for the node), failed (tried again), stale (not what the watch had said).",
		}, []string{"result"}),
	}
}

// NeedLeaderElection keeps the writes with the leader.
func (e *Executor) NeedLeaderElection() bool { return true }

// Wake has a SidecarSet looked at. It does not wait, and may be called before Start.
func (e *Executor) Wake(sidecarSet string) { e.queue.Add(item{sidecarSet: sidecarSet}) }

// Start writes Pods until ctx ends. It returns when no write is under way any more,
// so that no write of this process comes after its Lease is released.
func (e *Executor) Start(ctx context.Context) error {
	context.AfterFunc(ctx, e.queue.ShutDown)
	e.running.Go(func() { e.watchOverdue(ctx) })
	for {
		next, shutdown := e.queue.Get()
		if shutdown {
			break
		}
		_ = e.look(ctx, next) // it fails when ctx ends
		e.queue.Done(next)
	}
	e.running.Wait()
	return nil
}

// look is one pass over a SidecarSet. It waits for no request to the API server.
func (e *Executor) look(ctx context.Context, next item) error {
	switch {
	case next.held != "":
		return e.Source.Do(ctx, next.sidecarSet, func(q *rollout.Queue) { q.Release(next.held) })
	case next.take != (rollout.Take{}):
		return e.Source.Do(ctx, next.sidecarSet, func(q *rollout.Queue) { q.Retry(next.take) })
	case next.chore != (Name{}):
		return e.Source.CheckChore(ctx, next.sidecarSet, next.chore)
	case next.overdue:
		return e.lookAtNodes(ctx, next.sidecarSet)
	}
	free := writesPerSet - e.underWay(next.sidecarSet, 0)
	if free <= 0 {
		return nil // a write that ends looks again
	}
	batch, err := e.Source.Take(ctx, next.sidecarSet, free)
	if err != nil {
		return err
	}
	for _, take := range batch.Updates {
		e.run(ctx, next.sidecarSet, func(ctx context.Context) { e.finish(ctx, batch.Program, take, e.carryOut(ctx, batch, take)) })
	}
	for _, chore := range batch.Chores {
		e.run(ctx, next.sidecarSet, func(ctx context.Context) {
			e.queue.AddAfter(item{sidecarSet: next.sidecarSet, chore: chore.Name}, e.attend(ctx, batch, chore))
		})
	}
	return nil
}

func (e *Executor) carryOut(ctx context.Context, batch Batch, take rollout.Take) (o outcome) {
	err := contained(ctx, func() {
		if take.Way == inplace.Recreate {
			o = e.evict(ctx, batch, take)
		} else {
			o = e.update(ctx, batch, take)
		}
	})
	if err != nil {
		return hasFailed(err)
	}
	return o
}

// contained turns a panic into an error. What is written on one Pod must not end the leader,
// and every leader after it.
func contained(ctx context.Context, work func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a defect of the operator: %v", p)
			log.FromContext(ctx).Error(err, "Work on a Pod has panicked", "stack", string(debug.Stack()))
		}
	}()
	work()
	return nil
}

// run does work on a Pod of a SidecarSet as soon as there is a slot.
func (e *Executor) run(ctx context.Context, sidecarSet string, work func(context.Context)) {
	e.underWay(sidecarSet, 1)
	e.running.Go(func() {
		select {
		case e.slots <- struct{}{}:
			work(ctx)
			<-e.slots
		case <-ctx.Done():
		}
		e.underWay(sidecarSet, -1)
		e.Wake(sidecarSet)
	})
}

func (e *Executor) underWay(sidecarSet string, more int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := e.busy[sidecarSet] + more
	if n == 0 {
		delete(e.busy, sidecarSet)
	} else {
		e.busy[sidecarSet] = n
	}
	return n
}

// finish gives a Pod back, unless ctx has ended.
func (e *Executor) finish(ctx context.Context, program *inject.Program, take rollout.Take, o outcome) {
	name := program.Name()
	logger := log.FromContext(ctx).WithName("rollout").WithValues("SidecarSet", name, "Pod", take.Namespace.Value()+"/"+take.Name)
	if take.Way == inplace.Recreate {
		e.evictions.WithLabelValues(string(o.result)).Inc()
	} else {
		e.updates.WithLabelValues(string(o.result)).Inc()
	}
	if take.Way == inplace.Recreate && o.result != evicted {
		_ = e.Source.NotEvicted(ctx, name, take)
	}
	switch o.result {
	case evicted:
		logger.Info("Evicted a Pod")
		_ = e.Source.Evicted(ctx, name, take)
	case written:
		logger.V(1).Info("Updated a Pod")
		_ = e.Source.Do(ctx, name, func(q *rollout.Queue) { q.Written(take, o.version, o.disturbed) })
	case refused, failed, protected:
		logger.Info("A Pod is not updated now", "reason", o.reason, "message", o.message, "again", o.wait)
		_ = e.Source.Do(ctx, name, func(q *rollout.Queue) { q.Hold(take, o.reason, o.message) })
		if o.stuck { // after Hold: the Pod is to be evicted perhaps
			_ = e.Source.SetStuck(ctx, program, take, o.reason)
		}
		e.queue.AddAfter(item{sidecarSet: name, held: take.UID}, o.wait) // after Hold, which Release ends
	default:
		logger.V(1).Info("A Pod is not as its queue has it", "message", o.message)
		e.queue.AddAfter(item{sidecarSet: name, take: take}, staleWait)
	}
}
