package executor

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
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
	"github.com/sidecarset/operator/internal/podstate"
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

// Executor writes Pods while it runs. It is made by New.
type Executor struct {
	Options
	queue workqueue.TypedDelayingInterface[item]
	slots chan struct{}
	nodes *nodes
	known *revisions
	// resizeMissed is when the API server was last seen to lack the subresource resize. It is
	// valid for refusalWait, because the API server may be upgraded.
	resizeMissed atomic.Pointer[time.Time]
	limit        flowcontrol.RateLimiter
	updates      *prometheus.CounterVec
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
	take       rollout.Take     // to be given back
	held       types.UID        // to be released
	chore      *podstate.Record // to be looked at again
	overdue    bool             // look at the Nodes of Pods that do not become ready after an update, too
}

// Options are what an Executor works with.
type Options struct {
	// Tally runs a function on the tally, in the goroutine that owns it, and waits for its
	// end. Before the first list of Pods is complete, it does not run it. It fails only when
	// ctx ends. If more Pods may be written afterwards, the owner calls Wake.
	Tally func(ctx context.Context, use func(*tally.Tally)) error
	// Current is the latest snapshot.
	Current func() *match.Snapshot
	Pods    corev1client.PodsGetter
	Nodes   corev1client.NodesGetter
	// Revision reads a ControllerRevision, or says that it is not found. It is asked
	// for each Pod, so it should read from a cache.
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
		return e.withQueue(ctx, next.sidecarSet, func(q *rollout.Queue) { q.Release(next.held) })
	case next.take != (rollout.Take{}):
		return e.withQueue(ctx, next.sidecarSet, func(q *rollout.Queue) { q.Retry(next.take) })
	case next.chore != nil:
		return e.Tally(ctx, func(t *tally.Tally) { t.CheckChore(next.sidecarSet, next.chore.Namespace, next.chore.Name) })
	case next.overdue:
		if err := e.lookAtNodes(ctx, next.sidecarSet); err != nil {
			return err
		}
	}
	free := writesPerSet - e.underWay(next.sidecarSet, 0)
	if free <= 0 {
		return nil // when a write ends, it starts another pass
	}
	var due tally.Due
	if err := e.Tally(ctx, func(t *tally.Tally) { due = t.Due(next.sidecarSet, free) }); err != nil {
		return err
	}
	for _, take := range due.Updates {
		e.run(ctx, next.sidecarSet, func(ctx context.Context) { e.finish(ctx, due.Program, take, e.carryOut(ctx, due, take)) })
	}
	for _, chore := range due.Chores {
		e.run(ctx, next.sidecarSet, func(ctx context.Context) {
			e.queue.AddAfter(item{sidecarSet: next.sidecarSet, chore: chore.Pod}, e.attend(ctx, due, chore))
		})
	}
	return nil
}

func (e *Executor) withQueue(ctx context.Context, sidecarSet string, f func(*rollout.Queue)) error {
	return e.Tally(ctx, func(t *tally.Tally) { t.WithQueue(sidecarSet, f) })
}

func (e *Executor) carryOut(ctx context.Context, due tally.Due, take rollout.Take) (o outcome) {
	err := contained(ctx, func() {
		if take.Way == inplace.Recreate {
			o = e.evict(ctx, due, take)
		} else {
			o = e.update(ctx, due, take)
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
		_ = e.Tally(ctx, func(t *tally.Tally) { t.NotEvicted(name, take) })
	}
	switch o.result {
	case evicted:
		logger.Info("Evicted a Pod")
		_ = e.Tally(ctx, func(t *tally.Tally) { t.Evicted(name, take) })
	case written:
		logger.V(1).Info("Updated a Pod")
		_ = e.withQueue(ctx, name, func(q *rollout.Queue) { q.Written(take, o.version, o.disturbed) })
	case refused, failed, protected:
		logger.Info("A Pod is not updated now", "reason", o.reason, "message", o.message, "again", o.wait)
		_ = e.Tally(ctx, func(t *tally.Tally) {
			t.WithQueue(name, func(q *rollout.Queue) { q.Hold(take, o.reason, o.message) })
			if o.stuck { // after Hold, because SetStuck may mark the Pod for eviction
				t.SetStuck(program, take, o.reason)
			}
		})
		e.queue.AddAfter(item{sidecarSet: name, held: take.UID}, o.wait) // after Hold, which Release ends
	default:
		logger.V(1).Info("A Pod is not as its queue has it", "message", o.message)
		e.queue.AddAfter(item{sidecarSet: name, take: take}, staleWait)
	}
}
