package controllers

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/status"
)

func TestStatusSaysWhatWasCounted(t *testing.T) {
	control(t, 3, func(t *testing.T, r *rig) {
		r.feed(t, webPod(1), notReady(webPod(2)))
		r.pass(writeInterval)
		want := []map[string]any{{
			"metadata": map[string]any{"resourceVersion": "103"},
			"status": map[string]any{
				"observedGeneration": 3.0, "matchedPods": 2.0, "updatedPods": 2.0, "readyPods": 1.0, "updatedReadyPods": 1.0, "uninjectedPods": 0.0,
				"uninjected": nil, "blockedPods": nil, "notRunningPods": nil, "notReadyBefore": nil, "disappearedPods": 0.0, "disappearedUntil": nil, "rolloutStartTime": nil, "revisions": []any{map[string]any{"pods": 2.0, "readyPods": 1.0}},
				"stableRevision": r.api.stored(t)[0].Name,
				"latestRevision": r.api.stored(t)[0].Name, "collisionCount": 0.0,
				"conditions": []any{map[string]any{
					"type": "Accepted", "status": "True", "reason": "Accepted", "message": "The operator uses this SidecarSet.",
					"observedGeneration": 3.0, "lastTransitionTime": "2000-01-01T00:00:01Z",
				}, map[string]any{
					"type": "Progressing", "status": "False", "reason": "Complete", "message": "All 2 matched Pods are updated.",
					"observedGeneration": 3.0, "lastTransitionTime": "2000-01-01T00:00:01Z",
				}, map[string]any{
					"type": "Degraded", "status": "False", "reason": "AsExpected", "message": "No action is needed.",
					"observedGeneration": 3.0, "lastTransitionTime": "2000-01-01T00:00:01Z",
				}},
			},
		}}
		if diff := cmp.Diff(want, r.api.patches); diff != "" {
			t.Errorf("patches (-want +got):\n%s", diff)
		}
	})
}

// C §17 T33: the generation in the status is that of the counters, not that of the object which is
// stored. While the snapshot is behind the object, no status is written.
func TestStatusNamesTheGenerationThatWasCounted(t *testing.T) {
	observed := func(generation int64) func(*unstructured.Unstructured) error {
		return func(o *unstructured.Unstructured) error {
			return unstructured.SetNestedField(o.Object, generation, "status", "observedGeneration")
		}
	}
	for name, tc := range map[string]struct {
		edit  func(*unstructured.Unstructured) error
		young *appsv1beta1.SidecarSet // comes into the snapshot later
		want  int64                   // 0: no status is written
	}{
		"a new generation": {func(o *unstructured.Unstructured) error { o.SetGeneration(2); return nil }, fixtures.LogSet(2), 2},
		"one that is older than the status says": {func(o *unstructured.Unstructured) error {
			o.SetGeneration(2)
			return observed(2)(o)
		}, nil, 0},
		"an object that was deleted and made again": {func(o *unstructured.Unstructured) error { o.SetUID("set-2"); return nil }, nil, 0},
		"a forged one is corrected":                 {observed(99), fixtures.LogSet(1), 1},
	} {
		t.Run(name, func(t *testing.T) {
			control(t, 1, func(t *testing.T, r *rig) {
				r.edit(t, tc.edit)
				r.feed(t, webPod(1))
				r.pass(time.Hour)
				if tc.want != 1 {
					r.wantWrites(t, 0)
				}
				if tc.young == nil {
					return
				}
				r.compiled(t, tc.young)
				r.pass(writeInterval)
				if got := r.written(t).ObservedGeneration; got != tc.want {
					t.Errorf("observedGeneration = %d, want %d", got, tc.want)
				}
			})
		})
	}
}

func TestWriteErrors(t *testing.T) {
	resource := appsv1beta1.Resource.GroupResource()
	tests := map[string]struct {
		err    error
		retry  time.Duration // after the failure
		result string        // in the metric
	}{
		"the SidecarSet is gone":           {apierrors.NewNotFound(resource, "log"), recheck, ""},
		"the cache is behind":              {apierrors.NewConflict(resource, "log", errors.New("x")), writeInterval, "conflict"},
		"the API server fails":             {apierrors.NewInternalError(errors.New("x")), 2 * writeInterval, "error"},
		"the API server does not answer":   {apierrors.NewTimeoutError("x", 1), 2 * writeInterval, "error"},
		"the API server takes no requests": {apierrors.NewTooManyRequests("x", 1), 2 * writeInterval, "error"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			control(t, 1, func(t *testing.T, r *rig) {
				r.feed(t, webPod(1))
				r.api.fail(tc.err)
				r.pass(writeInterval)
				r.wantWrites(t, 1)
				if tc.result != "" && metricsOf(r.m.statusWrites) != 1 {
					t.Errorf("%d results are counted", metricsOf(r.m.statusWrites))
				}
				r.api.fail(nil)
				r.pass(tc.retry)
				if got := r.written(t); got.MatchedPods != 1 {
					t.Errorf("after %v: %+v", tc.retry, got)
				}
			})
		})
	}
}

func TestAnObjectThatDoesNotCompileIsReported(t *testing.T) {
	control(t, 2, func(t *testing.T, r *rig) {
		r.compiled(t) // without a compiled SidecarSet
		r.feed(t, webPod(1))
		r.pass(time.Minute)
		r.wantWrites(t, 0)
		// The snapshot announces nothing about an object that it does not hold.
		r.sets.SetProblem("log", errors.New("spec.containers[0]: what is wrong"))
		r.pass(recheckWait + writeInterval)
		if got := r.written(t); got.MatchedPods != 0 || got.ObservedGeneration != 2 || !meta.IsStatusConditionFalse(got.Conditions, appsv1beta1.ConditionAccepted) ||
			!meta.IsStatusConditionFalse(got.Conditions, appsv1beta1.ConditionReady) {
			t.Errorf("status = %+v", got)
		}
		r.sets.SetProblem("log", errors.New("spec.containers[1]: another problem"))
		r.pass(recheckWait)
		r.wantWrites(t, 2)
	})
}

func TestADeletedSidecarSetIsForgotten(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.feed(t, webPod(1))
		r.judge("set-1", 1, inForce)
		r.pass(writeInterval)
		want := func(n int) {
			t.Helper()
			for name, c := range map[string]prometheus.Collector{"matched": r.m.matched, "ready": r.m.readiness, "phase": r.m.phase} {
				if got := metricsOf(c); got != n {
					t.Errorf("%d gauges %s, want %d", got, name, n)
				}
			}
			if len(r.debounce.known) != n {
				t.Errorf("%d writes are remembered, want %d", len(r.debounce.known), n)
			}
		}
		want(1)
		r.api.replace(nil)
		r.pass(0)
		want(0)
	})
}

func metricsOf(c prometheus.Collector) int {
	metrics := make(chan prometheus.Metric, 10)
	c.Collect(metrics)
	return len(metrics)
}

// valueOf is the value of the only gauge of a collector.
func valueOf(t *testing.T, c prometheus.Collector) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].GetMetric()[0].GetGauge().GetValue()
}

// However fast Pods and readiness change, the status of a SidecarSet is written once a second, with
// one Event at most. A second after the last change, the written status is right.
func TestAStatusIsWrittenOnceASecond(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.feed(t)
		for step := range 1500 { // 15 seconds of 100 events each
			change := func(pod *corev1.Pod) *corev1.Pod { return pod }
			if step/70%2 == 1 {
				change = notReady
			}
			r.feed(t, change(webPod(step%10)))
			r.judge("set-1", 1, []status.Readiness{inForce, noReplica}[step%2])
			r.pass(10 * time.Millisecond)
		}
		if n := r.api.writes(); n < 7 || n > 17 || len(r.heard()) > n {
			t.Errorf("%d writes and %d Events in 15 seconds, want about one a second", n, len(r.heard()))
		}
		r.pass(writeInterval)
		if got := r.written(t); got.MatchedPods != 10 || got.ReadyPods != 0 {
			t.Errorf("at the end %d matched and %d ready Pods are written, want 10 and 0", got.MatchedPods, got.ReadyPods)
		}
	})
}

// Most SidecarSets are ready within a moment. Then the first status says so, and it
// is the only write.
func TestASidecarSetThatIsReadySoonIsWrittenOnce(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.feed(t)
		r.judge("set-1", 1, notYet)
		r.pass(writeInterval - time.Millisecond)
		r.wantWrites(t, 0)
		r.judge("set-1", 1, inForce)
		r.wantWrites(t, 1)
		if s := r.written(t); !meta.IsStatusConditionTrue(s.Conditions, appsv1beta1.ConditionReady) {
			t.Errorf("status = %+v", s)
		}
		r.pass(time.Hour)
		r.wantWrites(t, 1)
		r.wantEvents(t, "log Normal Injecting")
	})
}

func TestReadyIsWrittenAtOnceAfterASlowStart(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.feed(t)
		r.judge("set-1", 1, notYet)
		r.pass(writeInterval + 100*time.Millisecond)
		r.wantWrites(t, 1)
		if got := valueOf(t, r.m.readiness); got != 0 {
			t.Errorf("sidecarset_ready is %v", got)
		}
		r.judge("set-1", 1, inForce)
		r.wantWrites(t, 2)
		r.wantEvents(t, "log Warning Pending", "log Normal Injecting")
		if got := valueOf(t, r.m.readiness); got != 1 {
			t.Errorf("sidecarset_ready is %v", got)
		}
	})
}

// A SidecarSet that is deleted and created again under its name is another one,
// although its generation is 1 again.
func TestARecreatedSidecarSetInheritsNoStatus(t *testing.T) {
	for _, before := range []int64{1, 5} {
		t.Run(fmt.Sprintf("after generation %d", before), func(t *testing.T) {
			control(t, before, func(t *testing.T, r *rig) {
				r.feed(t, webPod(1))
				r.judge("set-1", before, inForce)
				if s := r.written(t); !meta.IsStatusConditionTrue(s.Conditions, appsv1beta1.ConditionReady) {
					t.Fatalf("before: %+v", s)
				}
				young := fixtures.LogSet(1)
				young.UID, young.ResourceVersion = "set-2", ""
				r.api.replace(untyped(t, young))
				r.feed(t, webPod(2))
				r.pass(time.Minute)
				r.wantWrites(t, 1) // nothing of the old one, which the snapshot still has

				r.compiled(t, young)
				r.pass(writeInterval)
				s := r.written(t)
				if s.MatchedPods != 2 || s.ObservedGeneration != 1 {
					t.Errorf("status = %+v", s)
				}
				if c := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionReady); c != nil {
					t.Errorf("the new SidecarSet is said to be what the old one was: %+v", c)
				}
				r.judge("set-2", 1, inForce)
				if s := r.written(t); !meta.IsStatusConditionTrue(s.Conditions, appsv1beta1.ConditionReady) {
					t.Errorf("Ready is not written at once: %+v", s)
				}
			})
		})
	}
}

// A change that is not announced is found by the next look: within a minute the status is
// right and the revision exists.
func TestAnUnannouncedChangeIsFoundWithinAMinute(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.feed(t, webPod(1))
		r.pass(writeInterval)
		r.objects.dead.Store(true)
		r.counts.dead.Store(true)
		r.feed(t, webPod(2))
		r.judge("set-1", 1, inForce)
		if err := r.api.DeleteAllOf(t.Context(), &appsv1.ControllerRevision{}, client.InNamespace("system")); err != nil {
			t.Fatal(err)
		}
		r.objects.dead.Store(false)
		r.counts.dead.Store(false)
		r.pass(recheck + writeInterval)
		if s := r.written(t); s.MatchedPods != 2 || !meta.IsStatusConditionTrue(s.Conditions, appsv1beta1.ConditionReady) || len(r.api.stored(t)) != 1 {
			t.Errorf("status %+v, %d revisions", s, len(r.api.stored(t)))
		}
	})
}

func TestDebounceSurvivesAClockThatIsSetBack(t *testing.T) {
	d, now := newDebounce(), time.Unix(1000, 0)
	if wait := d.begin("log", "uid", 1, now); wait != 0 {
		t.Errorf("the first pass waits for %v", wait)
	}
	d.passed("log", false, 0)
	d.wrote("log", false, now)
	for past, want := range map[time.Duration]time.Duration{-time.Hour: time.Second, time.Second: 0} {
		if wait, write := d.next("log", now.Add(past)), d.unwritable("log", false, now.Add(past)); wait != want || write != want {
			t.Errorf("after %v the next pass waits for %v, a write for %v; want %v", past, wait, write, want)
		}
	}
}

// While no Pod can be written, at most one pass a second follows Pods that change all the time, and
// else ten. Passes that take long are fewer.
func TestPassesAreSpaced(t *testing.T) {
	for _, tc := range []struct {
		busy bool
		took time.Duration
		want int
	}{{false, 0, 10}, {true, 0, 100}, {true, 25 * time.Millisecond, 10}, {false, 50 * time.Millisecond, 5}} {
		d, passes := newDebounce(), 0
		begin := time.Unix(1000, 0)
		for now := begin; now.Before(begin.Add(10 * time.Second)); now = now.Add(10 * time.Millisecond) {
			if d.begin("log", "uid", 1, now) == 0 {
				d.passed("log", tc.busy, tc.took)
				passes++
			}
		}
		if passes != tc.want {
			t.Errorf("%+v: %d passes in ten seconds", tc, passes)
		}
	}
}
