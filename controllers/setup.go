package controllers

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/controllers/executor"
	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/status"
)

// SidecarSets is the snapshot of compiled SidecarSets that admission uses.
type SidecarSets interface {
	// Current returns the latest snapshot; nil as long as there is none.
	Current() *match.Snapshot
	// Notify makes every later snapshot send on the channel, without waiting
	// for a receiver. It is called before the manager starts.
	Notify(changed chan<- struct{})
	// Problem says why the SidecarSet of that name cannot be used as it is
	// stored; nil if it can.
	Problem(name string) error
}

// Readiness reports which SidecarSets are Ready.
type Readiness interface {
	// Of returns what is known of one generation of the SidecarSet with this name
	// and UID; nil if nothing is known. It does not wait, and is safe for
	// concurrent use.
	Of(sidecarSet string, uid types.UID, generation int64) *status.Readiness
	// Notify registers changed, which is called with a SidecarSet's name when the
	// result of Of changes. changed does not wait, and may be called from any
	// goroutine. Notify is called before the manager starts.
	Notify(changed func(sidecarSet string))
}

// Options change how the controllers work.
type Options struct {
	// ExcludedNamespaces are those for whose Pods API servers never call the webhook. Their
	// Pods do not count as uninjected.
	ExcludedNamespaces []string
	// Readiness reports which SidecarSets are Ready; if it is nil, no SidecarSet
	// gets the condition Ready.
	Readiness Readiness
	// RevisionNamespace holds the ControllerRevisions.
	RevisionNamespace string
	// RecordEvent writes Events. It does not wait.
	RecordEvent func(events.Event)
	// RecordPodEvent is RecordEvent for Events about Pods.
	RecordPodEvent func(events.Event)
	// WatchPause is the time between two attempts of the Pod watch, in which the
	// counters do not follow the Pods; client-go's own if nil.
	WatchPause *wait.Backoff
	// RolloutQPS is the limit of requests per second that update Pods; 0 means no limit.
	RolloutQPS int
	// Registry takes the metrics.
	Registry prometheus.Registerer
	// Leadership knows whether this process still leads; nil without leader election.
	Leadership *executor.Leadership
}

const (
	// workers is the number of SidecarSets that are reconciled in parallel. A reconcile
	// sends at most one request to the API server, so a few are enough.
	workers = 4
	// writeInterval is the least time between two writes of one SidecarSet's
	// status, however many Pods change in between.
	writeInterval = time.Second
	// A reconcile that failed is retried after firstRetry, then after twice the time
	// of the last retry, and after lastRetry at most.
	firstRetry, lastRetry = 5 * time.Millisecond, time.Minute
)

// Setup adds the Pod watch and the SidecarSet controller to a manager. Both wait
// for leadership.
func Setup(mgr ctrl.Manager, sets SidecarSets, o Options) error {
	m := newCollectors(o.Registry)
	source, err := newPodListerWatcher(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("making a client for Pods: %w", err)
	}
	pods := newPodTracker(sets, source, o.ExcludedNamespaces, m)
	if pods.nodeSource, err = newNodeListerWatcher(mgr.GetConfig(), mgr.GetHTTPClient()); err != nil {
		return fmt.Errorf("making a client for Nodes: %w", err)
	}
	r := &SidecarSetReconciler{
		reader: mgr.GetCache(),
		status: mgr.GetClient().Status(),
		sets:   sets,
		pods:   pods,
		revisions: &revisionKeeper{
			cached: mgr.GetCache(), live: mgr.GetAPIReader(), writer: mgr.GetClient(), namespace: o.RevisionNamespace,
		},
		readiness: o.Readiness,
		debounce:  newDebounce(),
		wake:      &waker{},
		event:     o.RecordEvent,
		m:         m,
	}
	if r.required, err = newRequiredPolicy(mgr.GetAPIReader(), o.ExcludedNamespaces); err != nil {
		return fmt.Errorf("reading the policy for required SidecarSets: %w", err)
	}
	pods.changed, pods.pause = r.changed, o.WatchPause
	if o.Readiness != nil {
		o.Readiness.Notify(func(sidecarSet string) { r.changed(sidecarSet, true) })
	}
	if err := mgr.Add(pods); err != nil {
		return fmt.Errorf("adding the Pod watch: %w", err)
	}
	if r.write, err = addExecutor(mgr, pods, o); err != nil {
		return fmt.Errorf("adding the updates of Pods: %w", err)
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("sidecarset").
		For(newSidecarSet()).
		Owns(&appsv1.ControllerRevision{}). // a revision that is deleted is recorded again
		WatchesRawSource(r.wake).
		WithOptions(controllerOptions()).
		Complete(r)
	if err != nil {
		return fmt.Errorf("adding the SidecarSet controller: %w", err)
	}
	return nil
}

func controllerOptions() controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
	}
}

// newSidecarSet returns an empty object of the one kind that is watched, so that
// the process keeps one informer for it.
func newSidecarSet() *unstructured.Unstructured {
	set := &unstructured.Unstructured{}
	set.SetGroupVersionKind(appsv1beta1.Kind)
	return set
}
