package controllers

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/podstate"
)

// inFlight is a Pod whose sidecar was updated while the Pod was available, and
// whose new container is in that state.
func inFlight(pod *corev1.Pod, state corev1.ContainerState) *corev1.Pod {
	pod.Generation, pod.Status.ObservedGeneration = 2, 2
	pod.Annotations[appsv1beta1.AnnotationInPlace] = podstate.Entries{}.With("log", podstate.Entry{
		Generation: 2, At: time.Now(), WasReady: true,
		Containers: map[string]podstate.Before{"log": {ID: "containerd://old", Digest: "sha256:old"}},
	}).Format(pod.UID)
	pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "log", ContainerID: "containerd://old", ImageID: "log@sha256:old", State: state}
	return notReady(pod)
}

// back is that Pod once the new container is ready.
func back(pod *corev1.Pod) *corev1.Pod {
	inFlight(pod, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}})
	s := &pod.Status.ContainerStatuses[0]
	s.ContainerID, s.Image, s.ImageID, s.Ready = "containerd://new", "log:1", "log@sha256:new", true
	pod.Status.Conditions[0].Status = corev1.ConditionTrue
	return pod
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
// stalled sooner if the kubelet reports that no container starts.
func TestARolloutThatDoesNotMoveIsStalled(t *testing.T) {
	for reason, after := range map[string]time.Duration{"ImagePullBackOff": time.Minute, "ContainerCreating": 10 * time.Minute} {
		t.Run(reason, func(t *testing.T) {
			control(t, 1, func(t *testing.T, r *rig) {
				r.feed(t, webPod(1), webPod(2))
				r.pass(time.Minute)
				wantReasons(t, r.written(t), "Complete", "AsExpected")
				r.feed(t, inFlight(webPod(1), waitingFor(reason)))
				r.pass(after - 2*time.Second)
				wantReasons(t, r.written(t), "RollingOut", "AsExpected")
				writes := r.store.writes()
				r.pass(2 * time.Minute)
				wantReasons(t, r.written(t), "Stalled", "PodsNotReady")
				r.pass(time.Hour)
				r.wantWrites(t, writes+1)
				r.feed(t, back(webPod(1)))
				r.pass(2 * time.Second)
				wantReasons(t, r.written(t), "Complete", "AsExpected")
				r.wantEvents(t, "log Normal RollingOut", "log Warning PodsNotReady", "log Normal Complete")
			})
		})
	}
}

// Each Pod that is back begins the time anew.
func TestARolloutThatMovesIsNotStalled(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		const pods = 5
		for i := range pods {
			r.feed(t, inFlight(webPod(i), waitingFor("ContainerCreating")))
		}
		for i := range pods {
			r.pass(9 * time.Minute)
			wantReasons(t, r.written(t), "RollingOut", "AsExpected")
			r.feed(t, back(webPod(i)))
		}
		r.pass(time.Minute)
		wantReasons(t, r.written(t), "Complete", "AsExpected")
	})
}

// With NotUpdate, the status does not report Pods that cannot be updated.
func TestStatusOmitsBlockedPodsUnderNotUpdate(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		old := webPod(1)
		old.Annotations[appsv1beta1.AnnotationHash] = `{"log":{"hash":"h0"}}`
		old.Annotations[appsv1beta1.AnnotationHashWithoutImage] = `{"log":{"hash":"n0"}}`
		r.feed(t, old)
		r.pass(time.Minute)
		wantReasons(t, r.written(t), "PodsBlocked", "PodsBlocked")
		if got := r.written(t).BlockedPods; len(got) != 1 || got[0].Pods != 1 || got[0].First[0] != "ns/web-1" {
			t.Errorf("blocked Pods are %+v", got)
		}
		set := fixtures.LogSet(2)
		set.Spec.UpdateStrategy.Type = appsv1beta1.NotUpdateSidecarSetStrategyType
		r.edit(t, func(o *unstructured.Unstructured) error { o.SetGeneration(2); return nil })
		r.compiled(set)
		r.pass(time.Minute)
		wantReasons(t, r.written(t), "NotUpdate", "AsExpected")
		if got := r.written(t).BlockedPods; got != nil {
			t.Errorf("blocked Pods are %+v, want none", got)
		}
	})
}
