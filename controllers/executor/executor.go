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
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/tracker"
)

// workers is how many Pods are written at the same time.
const workers = 64

// Executor writes Pods while it runs: each by one worker at a time. It is made by New.
type Executor struct {
	Options
	queue workqueue.TypedInterface[types.UID] // of Pods
	known *revisions
	// resizeMissed is when the API server was last seen to lack the subresource resize. It is
	// valid for resizeMemory, because the API server may be upgraded.
	resizeMissed atomic.Pointer[time.Time]
	limit        flowcontrol.RateLimiter
	updates      *prometheus.CounterVec

	mu    sync.Mutex
	items map[types.UID][]tracker.WorkItem // that wait, by Pod
}

// Options are what an Executor works with.
type Options struct {
	// Done receives the result of each WorkItem. It may wait, until ctx ends.
	Done func(ctx context.Context, item tracker.WorkItem, result tracker.Result)
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
		queue:   workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[types.UID]{Name: "rollout"}),
		known:   newRevisions(o.Revision),
		limit:   limit,
		updates: promauto.With(o.Registry).NewCounterVec(prometheus.CounterOpts{
			Name: "sidecarset_pod_updates_total",
			Help: "Pods that were to be updated in place, by result: written, rejected (by the API server), blocked (by the node, the kubelet or another program), failed (tried again), stale (not what the watch had said).",
		}, []string{"result"}),
		items: map[types.UID][]tracker.WorkItem{},
	}
}

// NeedLeaderElection returns true: only the leader writes.
func (e *Executor) NeedLeaderElection() bool { return true }

// Write has Pods written. It does not wait, and may be called before Start. After the end of Start it
// does nothing.
func (e *Executor) Write(items ...tracker.WorkItem) {
	for _, item := range items {
		pod := item.Summary.UID
		e.mu.Lock()
		e.items[pod] = append(e.items[pod], item)
		e.mu.Unlock()
		e.queue.Add(pod)
	}
}

// Start writes Pods until ctx ends. It returns after the last write has ended, so this
// process sends no write after it has released its Lease.
func (e *Executor) Start(ctx context.Context) error {
	stop := context.AfterFunc(ctx, e.queue.ShutDown)
	defer stop()
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for {
				pod, shutdown := e.queue.Get()
				if shutdown {
					return
				}
				e.writeAll(ctx, pod)
				e.queue.Done(pod)
			}
		})
	}
	running.Wait()
	return nil
}

// writeAll carries out what waits for a Pod.
func (e *Executor) writeAll(ctx context.Context, pod types.UID) {
	e.mu.Lock()
	items := e.items[pod]
	delete(e.items, pod)
	e.mu.Unlock()
	for _, item := range items {
		if ctx.Err() == nil {
			e.finish(ctx, item, e.carryOut(ctx, item))
		}
	}
}

func (e *Executor) carryOut(ctx context.Context, item tracker.WorkItem) (result tracker.Result) {
	work := map[tracker.Kind]func(context.Context, *attempt) (tracker.Result, error){
		tracker.Update: e.update, tracker.Reset: e.reset, tracker.Label: e.label,
	}[item.Kind]
	err := contained(ctx, func() { result = e.try(ctx, &attempt{WorkItem: item}, work) })
	if err != nil {
		return rests(inplace.UpdateImpossible, err.Error())
	}
	return result
}

// contained turns a panic into an error. A panic that the fields of one Pod cause
// must not end this leader and every later one.
func contained(ctx context.Context, work func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a defect of the operator: %v", p)
			log.FromContext(ctx).Error(err, "Update of a Pod panicked", "stack", string(debug.Stack()))
		}
	}()
	work()
	return nil
}

// finish tells the result of a WorkItem.
func (e *Executor) finish(ctx context.Context, item tracker.WorkItem, result tracker.Result) {
	logger := log.FromContext(ctx).WithName("rollout").WithValues("SidecarSet", item.Compiled.Name(), "Pod", item.Summary.FullName())
	name := "blocked"
	switch {
	case result.Version != 0:
		name = "written"
		logger.V(1).Info("Wrote a Pod")
	case result.Reason == "":
		name = "stale"
		logger.V(1).Info("Pod changed after it was selected for an update", "message", result.Message)
	case result.Reason == inplace.WriteRejected:
		name = "rejected"
	case result.Reason == inplace.WriteFailed:
		name = "failed"
	}
	if result.Reason != "" {
		logger.Info("Postponed the update of a Pod", "reason", result.Reason, "message", result.Message)
	}
	if item.Kind == tracker.Update {
		e.updates.WithLabelValues(name).Inc()
	}
	e.Done(ctx, item, result)
}
