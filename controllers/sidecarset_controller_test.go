package controllers

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

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
		if diff := cmp.Diff(want, r.store.patches); diff != "" {
			t.Errorf("patches (-want +got):\n%s", diff)
		}
	})
}

func TestNoStatusIsWrittenBeforeAllPodsAreKnown(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.pass(time.Hour)
		r.wantWrites(t, 0)
		r.feed(t, webPod(1))
		r.pass(writeInterval)
		r.wantWrites(t, 1)
	})
}

func TestAnUnchangedStatusIsWrittenOnce(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.feed(t, webPod(1))
		r.judge("set-1", 1, noReplica)
		r.pass(24 * time.Hour)
		r.wantWrites(t, 1)
		r.wantEvents(t, "log Warning NoReplica")
	})
}

// C §17 T33: the generation is that of the counters, not that of the object which
// is stored.
func TestStatusNamesTheGenerationThatWasCounted(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.edit(t, func(o *unstructured.Unstructured) error { o.SetGeneration(2); return nil })
		r.feed(t, webPod(1))
		r.pass(time.Minute)
		r.wantWrites(t, 0)
		r.compiled(t, fixtures.LogSet(2))
		r.pass(writeInterval)
		if got := r.written(t).ObservedGeneration; got != 2 {
			t.Errorf("observedGeneration = %d, want 2", got)
		}
	})
}

func TestNoStatusIsWrittenWhileTheSnapshotIsBehind(t *testing.T) {
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
			control(t, 1, func(t *testing.T, r *rig) {
				r.edit(t, edit)
				r.feed(t, webPod(1))
				r.pass(time.Hour)
				r.wantWrites(t, 0)
			})
		})
	}
}

func TestAForgedObservedGenerationIsCorrected(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.edit(t, func(o *unstructured.Unstructured) error {
			return unstructured.SetNestedField(o.Object, int64(99), "status", "observedGeneration")
		})
		r.feed(t, webPod(1))
		r.pass(writeInterval)
		if got := r.written(t).ObservedGeneration; got != 1 {
			t.Errorf("observedGeneration = %d, want 1", got)
		}
	})
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
				r.store.fail(tc.err)
				r.pass(writeInterval)
				r.wantWrites(t, 1)
				if tc.result != "" && metricsOf(r.m.statusWrites) != 1 {
					t.Errorf("%d results are counted", metricsOf(r.m.statusWrites))
				}
				r.store.fail(nil)
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
		r.pass(writeInterval)
		if n := metricsOf(r.m.matched); n != 1 {
			t.Errorf("%d gauges of matched Pods, want 1", n)
		}
		r.store.replace(nil)
		r.pass(0)
		if n := metricsOf(r.m.matched); n != 0 || len(r.debounce.known) != 0 {
			t.Errorf("%d gauges and %d writes are remembered", n, len(r.debounce.known))
		}
	})
}

func metricsOf(c prometheus.Collector) int {
	metrics := make(chan prometheus.Metric, 10)
	c.Collect(metrics)
	return len(metrics)
}

// However fast Pods change, the status of a SidecarSet is written once a second. A
// second after the last change, the written status is right.
func TestAStatusIsWrittenOnceASecondWhilePodsChange(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.feed(t)
		r.judge("set-1", 1, inForce)
		first := r.store.writes()
		for step := range 1500 { // 15 seconds of 100 events each
			change := func(pod *corev1.Pod) *corev1.Pod { return pod }
			if step/70%2 == 1 {
				change = notReady
			}
			r.feed(t, change(webPod(step%10)))
			r.pass(10 * time.Millisecond)
		}
		if n := r.store.writes() - first; n < 7 || n > 16 {
			t.Errorf("%d writes in 15 seconds, want about one a second", n)
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
		r.judge("set-1", 1, inForce)
		r.wantWrites(t, 2)
		r.wantEvents(t, "log Warning Pending", "log Normal Injecting")
	})
}

// Readiness that keeps changing is written once a second. That the conditions do
// not flap is a rule that the store checks.
func TestFlappingReadinessIsWrittenSeldom(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.feed(t)
		for i := range 1000 { // ten seconds
			r.judge("set-1", 1, []status.Readiness{inForce, noReplica}[i%2])
			r.pass(10 * time.Millisecond)
		}
		if n := r.store.writes(); n > 11 {
			t.Errorf("%d writes in ten seconds", n)
		}
		if len(r.heard()) > r.store.writes() {
			t.Errorf("%d Events, %d writes", len(r.heard()), r.store.writes())
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
				r.store.replace(untyped(t, young))
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
	tests := map[string]struct {
		dies func(*rig) *announcer
		do   func(t *testing.T, r *rig)
		want func(s appsv1beta1.SidecarSetStatus) bool
	}{
		"the tracker, of a Pod": {
			func(r *rig) *announcer { return r.counts },
			func(t *testing.T, r *rig) { r.feed(t, webPod(1), webPod(2)) },
			func(s appsv1beta1.SidecarSetStatus) bool { return s.MatchedPods == 2 },
		},
		"the cache, of a new generation": {
			func(r *rig) *announcer { return r.objects },
			func(t *testing.T, r *rig) {
				r.compiled(t, fixtures.LogSet(2))
				r.edit(t, func(o *unstructured.Unstructured) error { o.SetGeneration(2); return nil })
				r.feed(t)
			},
			func(s appsv1beta1.SidecarSetStatus) bool { return s.ObservedGeneration == 2 },
		},
		"the cache, of a deleted revision": {
			func(r *rig) *announcer { return r.objects },
			func(t *testing.T, r *rig) {
				r.feed(t)
				r.pass(writeInterval)
				for _, revision := range r.api.stored(t) {
					if err := r.api.Delete(t.Context(), &revision); err != nil {
						t.Fatal(err)
					}
				}
				if r.store.announce(); len(r.api.stored(t)) != 0 {
					t.Fatal("a revision is left")
				}
			},
			func(s appsv1beta1.SidecarSetStatus) bool { return s.LatestRevision != "" },
		},
		"readiness": {
			func(r *rig) *announcer { return r.judged.announcer },
			func(t *testing.T, r *rig) {
				r.feed(t)
				r.pass(writeInterval)
				r.judge("set-1", 1, inForce)
			},
			func(s appsv1beta1.SidecarSetStatus) bool {
				return meta.IsStatusConditionTrue(s.Conditions, appsv1beta1.ConditionReady)
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			control(t, 1, func(t *testing.T, r *rig) {
				dead := tc.dies(r)
				dead.dead.Store(true)
				tc.do(t, r)
				dead.dead.Store(false)
				if dead.lost.Load() == 0 {
					t.Fatal("nothing was announced that could be lost")
				}
				r.pass(recheck + writeInterval)
				if s := r.written(t); !tc.want(s) || len(r.api.stored(t)) != 1 {
					t.Errorf("status %+v, %d revisions", s, len(r.api.stored(t)))
				}
			})
		})
	}
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
