package controllers

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tracker"
)

// written is a Pod whose sidecar the operator has updated, in the form of earlier operators.
func written(pod *corev1.Pod, at time.Time) *corev1.Pod {
	pod.Generation, pod.Status.ObservedGeneration = 2, 2
	pod.Annotations[appsv1beta1.AnnotationInPlace] = podstate.InPlaceRecords{}.With("log", podstate.InPlaceRecord{
		Generation: 2, At: at, Containers: map[string]podstate.Before{"log": {ID: "containerd://old", Digest: "sha256:old"}},
	}).Format(pod.UID)
	return pod
}

// inFlight is a Pod that was available when it was updated just now, and whose new container is in
// that state.
func inFlight(pod *corev1.Pod, state corev1.ContainerState) *corev1.Pod {
	written(pod, time.Now())
	pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "log", ContainerID: "containerd://old", ImageID: "log@sha256:old", State: state}
	pod.Status.Conditions[0].LastTransitionTime = metav1.Now()
	return notReady(pod)
}

// back is that Pod once the new container is ready.
func back(pod *corev1.Pod) *corev1.Pod {
	written(pod, time.Now()).Status.Conditions[0].LastTransitionTime = metav1.Now()
	pod.Status.ContainerStatuses[0] = running(time.Now())
	return pod
}

// running is the new container.
func running(since time.Time) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: "log", Image: "log:1", ContainerID: "containerd://new", ImageID: "log@sha256:new", Ready: true, Started: new(true),
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(since)}},
	}
}

// failedLater is a Pod that was updated an hour ago, and that turned not Ready half an hour ago for
// reasons of its own.
func failedLater(pod *corev1.Pod) *corev1.Pod {
	hour := time.Now().Add(-time.Hour)
	written(pod, hour).Status.Conditions[0].LastTransitionTime = metav1.NewTime(hour.Add(30 * time.Minute))
	pod.Status.ContainerStatuses[0] = running(hour)
	return notReady(pod)
}

func waitingFor(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

func wantReasons(t *testing.T, s appsv1beta1.SidecarSetStatus, progressing, degraded string) {
	t.Helper()
	for kind, want := range map[string]string{appsv1beta1.ConditionProgressing: progressing, appsv1beta1.ConditionDegraded: degraded} {
		if c := meta.FindStatusCondition(s.Conditions, kind); c == nil || c.Reason != want {
			t.Errorf("%s is %+v, want %s", kind, c, want)
		}
	}
}

// A rollout whose Pods do not come back is stalled after a while, without an event. It is
// stalled sooner if the kubelet reports that no container starts. A Pod that is back ends that.
func TestARolloutThatDoesNotMoveIsStalled(t *testing.T) {
	for reason, after := range map[string]time.Duration{"ImagePullBackOff": time.Minute, "PodInitializing": 10*time.Minute + 30*time.Second} {
		t.Run(reason, func(t *testing.T) {
			control(t, 1, func(t *testing.T, r *rig) {
				r.feed(t, webPod(1), webPod(2))
				r.pass(time.Minute)
				wantReasons(t, r.written(t), "Complete", "AsExpected")
				r.feed(t, inFlight(webPod(1), waitingFor(reason)))
				r.pass(after - 2*time.Second)
				wantReasons(t, r.written(t), "RollingOut", "AsExpected")
				r.pass(2 * time.Minute)
				s := r.written(t)
				wantReasons(t, s, "Stalled", "PodsNotReady")
				if c := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionDegraded); !strings.Contains(c.Message, "ns/web-1") {
					t.Errorf("Degraded is %+v", c)
				}
				writes := r.api.writes()
				r.pass(time.Hour)
				r.wantWrites(t, writes)
				r.feed(t, back(webPod(1)))
				r.pass(2 * time.Second)
				wantReasons(t, r.written(t), "Complete", "AsExpected")
				r.wantEvents(t, "log Normal RollingOut", "log Warning PodsNotReady", "log Normal Complete")
			})
		})
	}
}

// succeed gives the rig a new leader's tracker, which has no Pods yet.
func (r *rig) succeed(t *testing.T) {
	t.Helper()
	fresh := newPodTracker(&fixtures.Snapshots{}, nil, nil, newCollectors(prometheus.NewRegistry()))
	err := r.pods.ask(t.Context(), func(*tracker.Tracker) {
		r.pods.tracker = fresh.tracker
		r.pods.synced.Store(false)
		r.pods.takeStore()
	})
	if err != nil {
		t.Fatal(err)
	}
	r.changed("log", true) // a controller begins with all objects
	r.pass(time.Second)
}

// A new leader changes nothing in the status before its list of Pods is complete, and continues from
// what is stored: three Pods were not Ready when the rollout began, and some fail later.
func TestANewLeaderTakesOverTheStatus(t *testing.T) {
	for name, tc := range map[string]struct {
		failed                int
		progressing, degraded string
	}{
		"as many as before":   {3, "Complete", "AsExpected"},
		"more than before":    {5, "Stalled", "PodsNotReady"},
		"a place is kept too": {0, "Complete", "AsExpected"},
	} {
		t.Run(name, func(t *testing.T) {
			control(t, 1, func(t *testing.T, r *rig) {
				pods := []*corev1.Pod{webPod(0)}
				for i := range tc.failed {
					pods = append(pods, webPod(i+1))
				}
				r.feed(t, pods...)
				r.pass(time.Minute)
				wantReasons(t, r.written(t), "Complete", "AsExpected")
				until := metav1.NewTime(time.Now().Add(5 * time.Minute).UTC().Truncate(time.Second))
				r.objects.dead.Store(true) // the old leader does not see it
				r.edit(t, func(o *unstructured.Unstructured) error {
					kept := map[string]any{"notReadyBefore": int64(3)}
					if name == "a place is kept too" {
						kept["disappearedPods"], kept["disappearedUntil"] = int64(1), until.Format(time.RFC3339)
					}
					for member, value := range kept {
						if err := unstructured.SetNestedField(o.Object, value, "status", member); err != nil {
							return err
						}
					}
					return nil
				})
				r.objects.dead.Store(false)
				stored, writes := r.written(t), r.api.writes()
				r.succeed(t)
				r.pass(time.Minute)
				r.wantWrites(t, writes)
				if diff := cmp.Diff(stored, r.written(t)); diff != "" {
					t.Errorf("before the list of Pods is complete, the status changes (-before +after):\n%s", diff)
				}

				for _, pod := range pods[1:] {
					failedLater(pod)
				}
				r.feed(t, pods...)
				r.pass(time.Minute)
				s := r.written(t)
				if s.NotReadyBefore == nil || *s.NotReadyBefore != 3 || s.DisappearedPods != stored.DisappearedPods || s.LatestRevision != stored.LatestRevision {
					t.Errorf("the status is %+v", s)
				}
				wantReasons(t, s, tc.progressing, tc.degraded)
				r.pass(30 * time.Minute)
				if s := r.written(t); s.DisappearedPods != 0 || s.DisappearedUntil != nil {
					t.Errorf("after its time, a place is kept: %+v", s)
				}
				if n := r.api.writes() - writes; n > 5 {
					t.Errorf("%d writes of the status in half an hour in which nothing happens", n)
				}
			})
		})
	}
}

// A Pod that disappears while it is updating is stored at once, so that the next available Pod can be written.
func TestAPodThatDisappearsIsStored(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		flying := inFlight(webPod(1), waitingFor("PodInitializing"))
		r.feed(t, flying, webPod(2))
		r.pass(time.Minute)
		flying.DeletionTimestamp = new(metav1.Now())
		want := time.Now().Add(10 * time.Minute).Truncate(time.Second)
		r.feed(t, flying)
		r.pass(2 * writeInterval)
		if s := r.written(t); s.DisappearedPods != 1 || s.DisappearedUntil == nil || s.DisappearedUntil.Sub(want).Abs() > time.Second {
			t.Errorf("the status is %+v, want one Pod until %v", s, want)
		}
		wantReasons(t, r.written(t), "Complete", "AsExpected") // no Pod is left to wait
		r.pass(11 * time.Minute)
		if s := r.written(t); s.DisappearedPods != 0 || s.DisappearedUntil != nil {
			t.Errorf("the status is %+v", s)
		}
		wantReasons(t, r.written(t), "Complete", "AsExpected")
	})
}

// Sidecars that have not run for a minute are told when the minute is over, in whatever part of a
// second the Pod comes.
func TestSidecarsThatDoNotRunAreToldAfterAMinute(t *testing.T) {
	for _, part := range []time.Duration{0, 300 * time.Millisecond, 700 * time.Millisecond} {
		control(t, 1, func(t *testing.T, r *rig) {
			r.pass(part)
			pod := notReady(webPod(1))
			pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now().Truncate(time.Second))
			pod.Status.ContainerStatuses[0].State = waitingFor("ImagePullBackOff")
			r.feed(t, pod)
			r.pass(50 * time.Second)
			wantReasons(t, r.written(t), "Complete", "AsExpected")
			r.pass(15 * time.Second)
			wantReasons(t, r.written(t), "Complete", "SidecarsNotRunning")
		})
	}
}

// A SidecarSet that is being deleted says so, and keeps what is stored of its rollout.
func TestASidecarSetThatIsBeingDeletedSaysSo(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.feed(t, inFlight(webPod(1), waitingFor("PodInitializing")))
		r.pass(time.Minute)
		before := r.written(t)
		r.edit(t, func(o *unstructured.Unstructured) error { o.SetFinalizers([]string{"example.com/wait"}); return nil })
		if err := r.api.Delete(t.Context(), r.api.object()); err != nil {
			t.Fatal(err)
		}
		r.api.announce()
		r.pass(writeInterval)
		s := r.written(t)
		wantReasons(t, s, "Deleting", "AsExpected")
		if c := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionProgressing); !strings.Contains(c.Message, "example.com/wait") || s.LatestRevision != before.LatestRevision {
			t.Errorf("the status is %+v", s)
		}
	})
}
