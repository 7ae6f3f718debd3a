package controllers

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

var logRequest = ctrl.Request{NamespacedName: types.NamespacedName{Name: "log"}}

// rig is a reconciler with everything around it under the test's control.
type rig struct {
	*SidecarSetReconciler

	clock *clocktesting.FakePassiveClock
	sets  *sidecarSets
	store *store
	api   *revisionAPI
	board *readinessBoard
}

// newRig has SidecarSet "log" at this generation in the snapshot and the cache.
func newRig(t *testing.T, generation int64) *rig {
	t.Helper()
	r := &rig{
		clock: clocktesting.NewFakePassiveClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
		sets:  &sidecarSets{problems: map[string]error{}},
		store: newStore(t, logSet(generation)),
		api:   newRevisionAPI(),
		board: newReadinessBoard(),
	}
	pods := ownedTally(t, r.sets)
	r.sets.swap(logSet(generation))
	r.SidecarSetReconciler = &SidecarSetReconciler{
		reader: r.store, status: r.store, sets: r.sets, pods: pods, revisions: r.api.keeper(),
		readiness: r.board, pace: newPace(writeInterval), clock: r.clock, m: pods.m,
	}
	r.knows(t, generation)
	return r
}

// knows waits until the tally works with this generation.
func (r *rig) knows(t *testing.T, generation int64) {
	t.Helper()
	eventually(t, func() error {
		n, err := r.pods.count(t.Context(), "log")
		if err == nil && (!n.Known || n.Program.Set.Generation != generation) {
			err = fmt.Errorf("the tally does not know generation %d", generation)
		}
		return err
	})
}

func (r *rig) reconcile(t *testing.T) ctrl.Result {
	t.Helper()
	result, err := r.Reconcile(t.Context(), logRequest)
	if err != nil {
		t.Fatalf("Reconcile: %v", err)
	}
	return result
}

func (r *rig) storedStatus(t *testing.T) appsv1beta1.SidecarSetStatus {
	t.Helper()
	s, err := statusOf(r.store.cached)
	if err != nil {
		t.Fatalf("reading the status: %v", err)
	}
	return s
}

func TestReconcileWritesWhatWasCounted(t *testing.T) {
	r := newRig(t, 3)
	r.pods.feed(t, webPod(1), notReady(webPod(2)))
	r.reconcile(t)
	want := []map[string]any{{
		"metadata": map[string]any{"resourceVersion": "103"},
		"status": map[string]any{
			"observedGeneration": 3.0, "matchedPods": 2.0, "updatedPods": 2.0, "readyPods": 1.0, "updatedReadyPods": 1.0, "uninjectedPods": 0.0,
			"latestRevision": r.api.stored(t)[0].Name, "collisionCount": 0.0,
			"conditions": []any{map[string]any{
				"type": "Accepted", "status": "True", "reason": "Compiled", "message": "The operator uses this SidecarSet.",
				"observedGeneration": 3.0, "lastTransitionTime": "2026-01-02T03:04:05Z",
			}},
		},
	}}
	if diff := cmp.Diff(want, r.store.patches); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
}

func TestReconcileWritesNothingBeforeAllPodsAreKnown(t *testing.T) {
	r := newRig(t, 1)
	if result := r.reconcile(t); !result.IsZero() || r.store.writes() != 0 {
		t.Fatalf("result %v, %d writes", result, r.store.writes())
	}
	r.pods.feed(t, webPod(1))
	select {
	case e := <-r.pods.dirty:
		if e.Object != "log" {
			t.Errorf("%s is announced", e.Object)
		}
	case <-time.After(deadline):
		t.Fatal("nothing is announced after the first list")
	}
	r.reconcile(t)
	if r.store.writes() != 1 {
		t.Errorf("%d writes, want 1", r.store.writes())
	}
}

func TestReconcileWritesNothingTwice(t *testing.T) {
	r := newRig(t, 1)
	r.pods.feed(t, webPod(1))
	for range 3 {
		r.reconcile(t)
		r.clock.SetTime(r.clock.Now().Add(time.Minute))
	}
	if r.store.writes() != 1 {
		t.Errorf("%d writes, want 1", r.store.writes())
	}
}

func TestReconcileKeepsStatusMembersOfOthers(t *testing.T) {
	r := newRig(t, 1)
	r.pods.feed(t, webPod(1))
	for _, member := range []string{"fromTheFuture", "fromElsewhere"} {
		if err := unstructured.SetNestedField(r.store.cached.Object, "kept", "status", member); err != nil {
			t.Fatal(err)
		}
	}
	r.reconcile(t)
	for _, member := range []string{"fromTheFuture", "fromElsewhere"} {
		if got, _, _ := unstructured.NestedString(r.store.cached.Object, "status", member); got != "kept" {
			t.Errorf("status.%s = %q", member, got)
		}
	}
}

// C §17 T33: the generation is that of the counters, not that of the object
// which happens to be stored.
func TestReconcileNamesTheGenerationThatWasCounted(t *testing.T) {
	r := newRig(t, 1)
	r.pods.feed(t, webPod(1))
	r.store.cached.SetGeneration(2)
	if r.reconcile(t); r.store.writes() != 0 {
		t.Errorf("%d writes with counters of generation 1", r.store.writes())
	}
	r.sets.swap(logSet(2))
	r.knows(t, 2)
	r.reconcile(t)
	if got := r.storedStatus(t).ObservedGeneration; got != 2 {
		t.Errorf("observedGeneration = %d, want 2", got)
	}
}

func TestReconcileWaitsForASnapshotThatIsBehind(t *testing.T) {
	tests := map[string]func(*unstructured.Unstructured) error{
		"of an older generation than the status speaks of": func(o *unstructured.Unstructured) error {
			o.SetGeneration(2)
			return unstructured.SetNestedField(o.Object, int64(2), "status", "observedGeneration")
		},
		"of an object that was deleted and made again": func(o *unstructured.Unstructured) error {
			o.SetUID("set-2")
			return nil
		},
	}
	for name, edit := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.pods.feed(t, webPod(1))
			if err := edit(r.store.cached); err != nil {
				t.Fatal(err)
			}
			if result := r.reconcile(t); !result.IsZero() || r.store.writes() != 0 {
				t.Errorf("result %v, %d writes", result, r.store.writes())
			}
		})
	}
}

func TestReconcileCorrectsAGenerationFromNowhere(t *testing.T) {
	r := newRig(t, 1)
	r.pods.feed(t, webPod(1))
	if err := unstructured.SetNestedField(r.store.cached.Object, int64(99), "status", "observedGeneration"); err != nil {
		t.Fatal(err)
	}
	r.reconcile(t)
	if got := r.storedStatus(t).ObservedGeneration; got != 1 {
		t.Errorf("observedGeneration = %d, want 1", got)
	}
}

func TestReconcileAnswersToWriteErrors(t *testing.T) {
	resource := appsv1beta1.Resource.GroupResource()
	tests := map[string]struct {
		err   error
		want  ctrl.Result
		fails bool
	}{
		"gone is done":                {apierrors.NewNotFound(resource, "log"), ctrl.Result{}, false},
		"a conflict is looked at":     {apierrors.NewConflict(resource, "log", errors.New("x")), ctrl.Result{RequeueAfter: writeInterval}, false},
		"others are for the queue":    {apierrors.NewInternalError(errors.New("x")), ctrl.Result{}, true},
		"a time-out is for the queue": {apierrors.NewTimeoutError("x", 1), ctrl.Result{}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.pods.feed(t, webPod(1))
			r.store.err = tc.err
			result, err := r.Reconcile(t.Context(), logRequest)
			if result != tc.want || (err != nil) != tc.fails {
				t.Errorf("Reconcile = %v, %v", result, err)
			}
		})
	}
}

func TestReconcileReportsAProblem(t *testing.T) {
	r := newRig(t, 2)
	r.sets.problems["log"] = errors.New("spec.selector: what is wrong")
	r.pods.feed(t, webPod(1))
	r.reconcile(t)
	got := r.storedStatus(t)
	for _, condition := range []string{appsv1beta1.ConditionAccepted, appsv1beta1.ConditionReady} {
		c := meta.FindStatusCondition(got.Conditions, condition)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != appsv1beta1.ReasonInvalid || got.ObservedGeneration != 2 {
			t.Errorf("status = %+v", got)
		}
	}
}

func TestReconcileReportsAnObjectThatDoesNotCompile(t *testing.T) {
	r := newRig(t, 2)
	r.pods.feed(t, webPod(1))
	r.sets.swap() // without a Program
	eventually(t, func() error {
		n, err := r.pods.count(t.Context(), "log")
		if err == nil && n.Known {
			err = errors.New("the tally still knows the SidecarSet")
		}
		return err
	})
	if result := r.reconcile(t); !result.IsZero() || r.store.writes() != 0 {
		t.Fatalf("without a problem: result %v, %d writes", result, r.store.writes())
	}
	r.sets.problems["log"] = errors.New("spec.containers[0]: what is wrong")
	if result := r.reconcile(t); result.RequeueAfter != recheckProblem {
		t.Errorf("after a write: result %v, want a second look", result)
	}
	if got := r.storedStatus(t); got.MatchedPods != 0 || got.ObservedGeneration != 2 || !meta.IsStatusConditionFalse(got.Conditions, appsv1beta1.ConditionAccepted) ||
		!meta.IsStatusConditionFalse(got.Conditions, appsv1beta1.ConditionReady) {
		t.Errorf("status = %+v", got)
	}
}

func TestReconcileForgetsADeletedSidecarSet(t *testing.T) {
	r := newRig(t, 1)
	r.pods.feed(t, webPod(1))
	r.reconcile(t)
	if n := metricsOf(r.m.matched); n != 1 {
		t.Errorf("%d gauges of matched Pods, want 1", n)
	}
	r.store.cached = nil
	r.clock.SetTime(r.clock.Now().Add(writeInterval))
	r.reconcile(t)
	if n := metricsOf(r.m.matched); n != 0 || len(r.pace.known) != 0 {
		t.Errorf("%d gauges and %d writes are remembered", n, len(r.pace.known))
	}
}

func metricsOf(c prometheus.Collector) int {
	metrics := make(chan prometheus.Metric, 10)
	c.Collect(metrics)
	return len(metrics)
}

// However fast Pods change, a SidecarSet is written once a second, and at the
// end what is written is right.
func TestReconcileWritesOnceASecond(t *testing.T) {
	r := newRig(t, 1)
	r.pods.feed(t, webPod(0))
	queue := &queue{rig: r, due: map[string]time.Time{}}
	start := r.clock.Now()
	for step := range 500 { // five seconds of 100 events each
		pod := webPod(step % 10)
		if step/10%2 == 1 {
			notReady(pod)
		}
		r.pods.feed(t, pod)
		r.clock.SetTime(start.Add(time.Duration(step) * 10 * time.Millisecond))
		queue.run(t)
	}
	if n := r.store.writes(); n < 4 || n > 5 {
		t.Errorf("%d writes in five seconds, want one a second", n)
	}
	r.clock.SetTime(r.clock.Now().Add(writeInterval))
	eventually(t, func() error {
		queue.run(t)
		if got := r.storedStatus(t); got.MatchedPods != 10 || got.ReadyPods != 0 {
			return fmt.Errorf("at the end %d matched and %d ready Pods are written, want 10 and 0", got.MatchedPods, got.ReadyPods)
		}
		return nil
	})
}

// queue is a work queue on the rig's clock.
type queue struct {
	*rig
	due map[string]time.Time
}

func (q *queue) run(t *testing.T) {
	t.Helper()
	for range q.pods.announcements(t) {
		if name := (<-q.pods.dirty).Object; q.due[name].IsZero() {
			q.due[name] = q.clock.Now()
		}
	}
	for name, due := range q.due {
		if due.After(q.clock.Now()) {
			continue
		}
		delete(q.due, name)
		if result := q.reconcile(t); result.RequeueAfter > 0 {
			q.due[name] = q.clock.Now().Add(result.RequeueAfter)
		}
	}
}

func TestPaceSurvivesAClockThatIsSetBack(t *testing.T) {
	p, now := newPace(time.Second), time.Unix(1000, 0)
	p.wrote("log", "uid", now)
	if rest := p.rest("log", "uid", now.Add(-time.Hour)); rest != time.Second {
		t.Errorf("rest = %v, want a second at most", rest)
	}
	if rest := p.rest("log", "uid", now.Add(time.Second)); rest > 0 {
		t.Errorf("rest = %v after a second", rest)
	}
}
