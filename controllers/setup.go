package controllers

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/source"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/tally"
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

// Options change how the controllers work.
type Options struct {
	// ExcludedNamespaces are those whose Pods the webhook is never called for,
	// so that nobody waits for them to be injected.
	ExcludedNamespaces []string
	// Readiness says which SidecarSets are in force; if it is nil, no SidecarSet
	// has the condition Ready.
	Readiness Readiness
	// RevisionNamespace holds the ControllerRevisions.
	RevisionNamespace string
	// Clock is the time; the real one if nil.
	Clock clock.PassiveClock
	// Registry takes the metrics; the manager's if nil.
	Registry prometheus.Registerer
}

const (
	// workers is how many SidecarSets are looked at in parallel. A reconcile is
	// one request to the API server at most, so a few are enough.
	workers = 4
	// writeInterval is the least time between two writes of one SidecarSet's
	// status, however many Pods change in between.
	writeInterval = time.Second
)

// watchPause is the time between two attempts of a watch that is not the
// manager's, whose counters are not true for as long: from a quarter of a second
// to five seconds, each up to half as long again.
var watchPause = wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 5 * time.Second}

// Setup adds the Pod watch and the SidecarSet controller to a manager. Both wait
// for leadership.
func Setup(mgr ctrl.Manager, sets SidecarSets, o Options) error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Registry == nil {
		o.Registry = metrics.Registry
	}
	m, err := newCollectors(o.Registry)
	if err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	source, err := newPodListerWatcher(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("making a client for Pods: %w", err)
	}
	pods := newPodTally(sets, source, tally.Options{ExcludedNamespaces: o.ExcludedNamespaces}, m)
	if err := mgr.Add(pods); err != nil {
		return fmt.Errorf("adding the Pod watch: %w", err)
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
		pace:      newPace(writeInterval),
		clock:     o.Clock,
		m:         m,
	}
	return r.setup(mgr, pods)
}

func (r *SidecarSetReconciler) setup(mgr ctrl.Manager, pods *podTally) error {
	readiness := &waker{}
	if r.readiness != nil {
		r.readiness.Notify(readiness.wake)
	}
	err := ctrl.NewControllerManagedBy(mgr).
		Named("sidecarset").
		For(newSidecarSet()).
		Owns(&appsv1.ControllerRevision{}). // what somebody deletes is recorded again
		WatchesRawSource(source.Channel(pods.dirty, enqueueName)).
		WatchesRawSource(readiness).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("adding the SidecarSet controller: %w", err)
	}
	return nil
}

// newSidecarSet returns an empty object of the one kind that is watched, so that
// the process keeps one informer for it.
func newSidecarSet() *unstructured.Unstructured {
	set := &unstructured.Unstructured{}
	set.SetGroupVersionKind(appsv1beta1.Kind)
	return set
}
