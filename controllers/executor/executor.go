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
	// lookEvery is the interval at which all SidecarSets are looked at without a cause.
	lookEvery = 30 * time.Second
)

// Executor writes Pods while it runs. It is made by New.
type Executor struct {
	Options
	queue workqueue.TypedDelayingInterface[string] // names of SidecarSets to look at
	slots chan struct{}
	known *revisions
	// resizeMissed is when the API server was last seen to lack the subresource resize. It is
	// valid for resizeMemory, because the API server may be upgraded.
	resizeMissed atomic.Pointer[time.Time]
	limit        flowcontrol.RateLimiter
	updates      *prometheus.CounterVec
	running      sync.WaitGroup

	mu    sync.Mutex
	lanes map[string]*lane // by SidecarSet
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
		queue:   workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Name: "rollout"}),
		slots:   make(chan struct{}, writesInAll),
		known:   newRevisions(o.Revision),
		limit:   limit,
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
	e.queue.AddAfter(sidecarSet, max(delay, 0))
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
	e.running.Go(func() { e.lookAtAll(ctx) })
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

// lookAtAll starts a pass over all SidecarSets, every lookEvery. If a wake-up was lost, this finds
// the Pods that can be written. It forgets SidecarSets that are gone.
func (e *Executor) lookAtAll(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, lookEvery, false, func(context.Context) (done bool, err error) {
		snapshot := e.Current()
		if snapshot == nil {
			return false, nil
		}
		for _, program := range snapshot.Programs() {
			e.queue.Add(program.Name())
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
func (e *Executor) look(ctx context.Context, name string) error {
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
	for _, task := range due.Tasks {
		e.run(ctx, name, func(ctx context.Context) { e.finish(ctx, name, task, e.carryOut(ctx, due, task)) })
	}
	if !due.Again.IsZero() {
		e.queue.AddAfter(name, max(time.Until(due.Again), passEvery))
	}
	return nil
}

func (e *Executor) carryOut(ctx context.Context, due tally.Due, task tally.Task) (result tally.Result) {
	a := &attempt{due: due, task: task}
	err := contained(ctx, func() {
		switch task.Kind {
		case tally.Update:
			result = e.try(ctx, a, e.update)
		case tally.Reset:
			result = e.try(ctx, a, e.reset)
		case tally.Label:
			result = e.try(ctx, a, e.label)
		}
	})
	if err != nil {
		return rests(inplace.UpdateImpossible, err.Error())
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

// finish returns a Task to its rollout, unless ctx has ended.
func (e *Executor) finish(ctx context.Context, sidecarSet string, task tally.Task, result tally.Result) {
	logger := log.FromContext(ctx).WithName("rollout").WithValues("SidecarSet", sidecarSet, "Pod", task.Record.FullName())
	name := "blocked"
	switch {
	case result.Version != 0:
		name = "written"
		logger.V(1).Info("Wrote a Pod")
	case result.Reason == "":
		name = "stale"
		logger.V(1).Info("A Pod is not as its rollout has it", "message", result.Message)
	case result.Reason == inplace.Refused:
		name = "refused"
	case result.Reason == inplace.WriteFailed:
		name = "failed"
	}
	if result.Reason != "" {
		logger.Info("A Pod is not written now", "reason", result.Reason, "message", result.Message)
	}
	if task.Kind == tally.Update {
		e.updates.WithLabelValues(name).Inc()
	}
	_ = e.Tally(ctx, func(t *tally.Tally) { t.Return(task, result) })
}
