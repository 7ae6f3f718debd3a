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
	writesPerSet, writesInAll = 16, 64
	// staleWait is the delay before retrying a Pod whose live state differed from the
	// queue's. The Pod watch usually delivers that state within milliseconds.
	staleWait = time.Second
	// refusalWait is the delay before retrying a Pod whose update the API server
	// refused: usually a user has to remove the cause. failureWait is the delay after
	// an update that failed.
	refusalWait, failureWait = 5 * time.Minute, 10 * time.Second
	// nodeWait is the delay before retrying a Pod whose Node cannot act on a change.
	nodeWait = time.Minute
)

// Source has the queues of all SidecarSets. Its methods fail only when ctx ends.
type Source interface {
	// Take takes at most n Pods of a SidecarSet that may be written now: from its
	// queue, or because a chore is due for them.
	Take(ctx context.Context, sidecarSet string, n int) (Batch, error)
	// Do runs f on the queue, in the goroutine that owns it. It does nothing if the
	// SidecarSet has no queue. If more Pods may be written afterwards, the owner calls
	// Wake.
	Do(ctx context.Context, sidecarSet string, f func(*rollout.Queue)) error
	// Evicted returns a Pod to the queue that was taken to be evicted, and was evicted.
	Evicted(ctx context.Context, sidecarSet string, take rollout.Take) error
	// NotEvicted reports that a Pod which was taken to be evicted was not evicted. The
	// caller also returns it to the queue with Do.
	NotEvicted(ctx context.Context, sidecarSet string, take rollout.Take) error
	// SetStuck records why a Pod that was taken cannot be updated in place to a
	// Program, although its record from the watch does not show this. An empty reason
	// means that it can.
	SetStuck(ctx context.Context, program *inject.Program, take rollout.Take, reason inplace.Reason) error
	// CheckChore makes a Pod that was taken for a chore available to Take again.
	CheckChore(ctx context.Context, sidecarSet string, pod Name) error
	// Overdue returns at most n Pods that are in flight and not ready, and were so at the
	// last call.
	Overdue(ctx context.Context, sidecarSet string, n int) ([]Name, error)
	// Lost says that the Node of a Pod is not ready or gone.
	Lost(ctx context.Context, pod Name) error
}

// Batch is what a pass works on.
type Batch struct {
	// Program is the content that the Pods are to get.
	Program *inject.Program
	// Since is for tally.MayEvict.
	Since int64
	// Contents is about the Program.
	Contents tally.Contents
	// Updates have to be returned to the queue, each once.
	Updates []rollout.Take
	// Chores are Pods whose hot upgrade has to be ended, or whose condition
	// SidecarSetUpgradable has a wrong value.
	Chores []Chore
}

// Chore is a Pod that is written apart from its queue.
type Chore struct {
	Name
	// FirstWord: the Pod has no condition SidecarSetUpgradable yet, and has to get one
	// with the value true.
	FirstWord bool
	// Over: the Pod was back from its last update for long; see inject.UpdateInput.
	Over bool
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
	// evictions counts evictions, and patience has the retry delays of those that a
	// PodDisruptionBudget refused.
	evictions *prometheus.CounterVec
	patience  *patience
	running   sync.WaitGroup

	mu   sync.Mutex
	busy map[string]int // writes under way, by SidecarSet
}

// item is a SidecarSet to look at. If it names a Pod, the retry delay of the Pod is over.
type item struct {
	sidecarSet string
	take       rollout.Take // to be given back
	held       types.UID    // to be released
	chore      Name         // to be looked at again
	overdue    bool         // look at the Nodes of Pods that do not become ready after an update, too
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
	// RecordEvent writes Events about Pods. It does not wait.
	RecordEvent func(events.Event)
	// QPS is the limit of requests for Pods per second; 0 means no limit.
	QPS int
	// Leadership is nil in a process without leader election.
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

// NeedLeaderElection returns true: only the leader writes.
func (e *Executor) NeedLeaderElection() bool { return true }

// Wake starts a pass over a SidecarSet. It does not wait, and may be called before Start.
func (e *Executor) Wake(sidecarSet string) { e.queue.Add(item{sidecarSet: sidecarSet}) }

// Start writes Pods until ctx ends. It returns after the last write has ended, so this
// process sends no write after it has released its Lease.
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

// look is one pass over a SidecarSet. It does not wait for requests to the API server.
func (e *Executor) look(ctx context.Context, next item) error {
	switch {
	case next.held != "":
		return e.Source.Do(ctx, next.sidecarSet, func(q *rollout.Queue) { q.Release(next.held) })
	case next.take != (rollout.Take{}):
		return e.Source.Do(ctx, next.sidecarSet, func(q *rollout.Queue) { q.Retry(next.take) })
	case next.chore != (Name{}):
		return e.Source.CheckChore(ctx, next.sidecarSet, next.chore)
	case next.overdue:
		if err := e.lookAtNodes(ctx, next.sidecarSet); err != nil {
			return err
		}
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
		return outcome{result: failed, reason: inplace.UpdateImpossible, message: bounded(err), wait: refusalWait}
	}
	return o
}

// contained turns a panic into an error. A panic that the content of one Pod causes
// must not end this leader and every later one.
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

// finish returns a Pod to its queue, unless ctx has ended.
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
		if o.stuck { // after Hold, because SetStuck may mark the Pod for eviction
			_ = e.Source.SetStuck(ctx, program, take, o.reason)
		}
		e.queue.AddAfter(item{sidecarSet: name, held: take.UID}, o.wait) // after Hold, which Release ends
	default:
		logger.V(1).Info("A Pod is not as its queue has it", "message", o.message)
		e.queue.AddAfter(item{sidecarSet: name, take: take}, staleWait)
	}
}
