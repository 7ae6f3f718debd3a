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
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

const (
	// passEvery is the shortest time between two passes over a SidecarSet.
	passEvery = 100 * time.Millisecond
	// inHandPerSet is how many Pods of one SidecarSet are taken at the same time,
	// writesPerSet how many of them are written, and writesInAll how many Pods of all
	// SidecarSets. Requests wait for the rate limiter in the order in which they come, so
	// that at most writesPerSet requests of a SidecarSet are before those of another one.
	inHandPerSet, writesPerSet, writesInAll = 64, 16, 64
	// overdueEvery is the interval at which all SidecarSets are looked at without a
	// cause, and the Nodes of Pods are read that do not become ready after an update.
	overdueEvery = 30 * time.Second
)

// Executor writes Pods while it runs. It is made by New.
type Executor struct {
	Options
	queue workqueue.TypedDelayingInterface[item]
	slots chan struct{}
	nodes *nodes
	known *revisions
	// resizeMissed is when the API server was last seen to lack the subresource resize. It is
	// valid for resizeMemory, because the API server may be upgraded.
	resizeMissed atomic.Pointer[time.Time]
	limit        flowcontrol.RateLimiter
	updates      *prometheus.CounterVec
	evictions    *prometheus.CounterVec
	running      sync.WaitGroup

	mu    sync.Mutex
	lanes map[string]*lane // by SidecarSet
}

// item is a SidecarSet to look at.
type item struct {
	sidecarSet string
	overdue    bool // look at the Nodes of Pods that do not become ready after an update, too
}

// lane is the work on the Pods of one SidecarSet.
type lane struct {
	slots  chan struct{}
	inHand int
	last   time.Time // when the last pass began
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
	// Generation reads the generation of the SidecarSet with that name from the API server; 0 if
	// there is none.
	Generation func(ctx context.Context, name string) (int64, error)
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
		Options: o,
		queue:   workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[item]{Name: "rollout"}),
		slots:   make(chan struct{}, writesInAll),
		nodes:   newNodes(o.Nodes),
		known:   newRevisions(o.Revision),
		limit:   limit,
		evictions: promauto.With(o.Registry).NewCounterVec(prometheus.CounterOpts{
			Name: "sidecarset_pod_evictions_total",
			Help: "Pods that were to be evicted, by result: evicted, protected (by a PodDisruptionBudget), refused (by the API server), failed (tried again), stale (not what the watch had said).",
		}, []string{"result"}),
		updates: promauto.With(o.Registry).NewCounterVec(prometheus.CounterOpts{
			Name: "sidecarset_pod_updates_total",
			Help: "Pods that were to be updated in place, by result: written, refused (by the API server), blocked (by the node, the kubelet or another program), failed (tried again), stale (not what the watch had said).",
		}, []string{"result"}),
		lanes: map[string]*lane{},
	}
}

// NeedLeaderElection returns true: only the leader writes.
func (e *Executor) NeedLeaderElection() bool { return true }

// Wake starts a pass over a SidecarSet, soon if one has just begun. It does not wait, and may
// be called before Start.
func (e *Executor) Wake(sidecarSet string) {
	e.mu.Lock()
	delay := passEvery - time.Since(e.lane(sidecarSet).last)
	e.mu.Unlock()
	e.queue.AddAfter(item{sidecarSet: sidecarSet}, max(delay, 0))
}

// lane returns the lane of a SidecarSet. The caller has the mutex.
func (e *Executor) lane(sidecarSet string) *lane {
	l := e.lanes[sidecarSet]
	if l == nil {
		l = &lane{slots: make(chan struct{}, writesPerSet)}
		e.lanes[sidecarSet] = l
	}
	return l
}

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

// watchOverdue starts a search for overdue Pods in all SidecarSets, every overdueEvery. If a
// wake-up was lost, this finds the Pods that can be written. It forgets SidecarSets that are
// gone.
func (e *Executor) watchOverdue(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, overdueEvery, false, func(context.Context) (done bool, err error) {
		snapshot := e.Current()
		if snapshot == nil {
			return false, nil
		}
		for _, program := range snapshot.Programs() {
			e.queue.Add(item{sidecarSet: program.Name(), overdue: true})
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		for name, l := range e.lanes {
			if _, exists := snapshot.Get(name); !exists && l.inHand == 0 {
				delete(e.lanes, name)
			}
		}
		return false, nil
	})
}

// look is one pass over a SidecarSet. It does not wait for requests to the API server.
func (e *Executor) look(ctx context.Context, next item) error {
	name := next.sidecarSet
	if next.overdue {
		if err := e.lookAtNodes(ctx, name); err != nil {
			return err
		}
	}
	e.mu.Lock()
	l := e.lane(name)
	l.last = time.Now()
	free := inHandPerSet - l.inHand
	e.mu.Unlock()
	if free <= 0 {
		return nil // when a write ends, it starts another pass
	}
	var due tally.Due
	if err := e.Tally(ctx, func(t *tally.Tally) { due = t.Due(name, free) }); err != nil {
		return err
	}
	for _, take := range due.Updates {
		e.run(ctx, name, func(ctx context.Context) { e.finish(ctx, name, take, e.carryOut(ctx, due, take)) })
	}
	for _, chore := range due.Chores {
		e.run(ctx, name, func(ctx context.Context) { e.rest(ctx, name, chore.Pod, e.attend(ctx, due, chore)) })
	}
	if !due.Again.IsZero() {
		e.queue.AddAfter(item{sidecarSet: name}, max(time.Until(due.Again), passEvery))
	}
	return nil
}

func (e *Executor) carryOut(ctx context.Context, due tally.Due, take rollout.Take) (result rollout.Result) {
	err := contained(ctx, func() {
		if take.Way == inplace.Recreate {
			result = e.evict(ctx, due, take)
		} else {
			result = e.update(ctx, due, take)
		}
	})
	if err != nil {
		return blocked(inplace.UpdateImpossible, err.Error())
	}
	return result
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

// run does work on a Pod of a SidecarSet as soon as there is a slot for the SidecarSet, and
// then one for all.
func (e *Executor) run(ctx context.Context, sidecarSet string, work func(context.Context)) {
	e.mu.Lock()
	l := e.lane(sidecarSet)
	l.inHand++
	e.mu.Unlock()
	e.running.Go(func() {
		if acquire(ctx, l.slots) {
			if acquire(ctx, e.slots) {
				work(ctx)
				<-e.slots
			}
			<-l.slots
		}
		e.mu.Lock()
		l.inHand--
		e.mu.Unlock()
		e.Wake(sidecarSet)
	})
}

// acquire waits for a slot. It returns false if ctx ends before.
func acquire(ctx context.Context, slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// resultNames are the values of the label result of the metrics.
var resultNames = map[rollout.ResultKind]string{
	rollout.Stale: "stale", rollout.Written: "written", rollout.Refused: "refused", rollout.Blocked: "blocked",
	rollout.Failed: "failed", rollout.Evicted: "evicted", rollout.Protected: "protected",
}

// finish returns a Pod to its rollout, unless ctx has ended.
func (e *Executor) finish(ctx context.Context, sidecarSet string, take rollout.Take, result rollout.Result) {
	counter := e.updates
	if take.Way == inplace.Recreate {
		counter = e.evictions
	}
	counter.WithLabelValues(resultNames[result.Kind]).Inc()
	logger := log.FromContext(ctx).WithName("rollout").WithValues("SidecarSet", sidecarSet, "Pod", take.Namespace.Value()+"/"+take.Name)
	switch result.Kind {
	case rollout.Evicted:
		logger.Info("Evicted a Pod")
	case rollout.Written:
		logger.V(1).Info("Updated a Pod")
	case rollout.Stale:
		logger.V(1).Info("A Pod is not as its rollout has it", "message", result.Message)
	default:
		logger.Info("A Pod is not updated now", "reason", result.Reason, "message", result.Message)
	}
	_ = e.Tally(ctx, func(t *tally.Tally) { t.Return(sidecarSet, take, result) })
}

// rest makes a chore available again after some time.
func (e *Executor) rest(ctx context.Context, sidecarSet string, pod *podstate.Record, delay time.Duration) {
	time.AfterFunc(delay, func() {
		_ = e.Tally(ctx, func(t *tally.Tally) { t.CheckChore(sidecarSet, pod.Namespace, pod.Name) })
	})
}
