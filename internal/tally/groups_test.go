package tally_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tally"
)

// updatedPod was ready when the operator updated its sidecar "log", whose container
// has not been replaced.
func updatedPod(name string, wasReady bool, status corev1.ContainerStatus) *corev1.Pod {
	status.Name, status.ContainerID, status.ImageID = "log", "containerd://old", "log@sha256:old"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: name, UID: types.UID(name), Generation: 2, Labels: map[string]string{"inject": "yes"},
		Annotations: map[string]string{
			appsv1beta1.AnnotationInjectedList: "logging",
			appsv1beta1.AnnotationInPlace: inplace.Marks{}.With("logging", inplace.Mark{
				Generation: 2, At: time.Unix(1767323045, 0), WasReady: wasReady,
				Containers: map[string]inplace.Before{"log": {ID: "containerd://old", Digest: "sha256:old"}},
			}).Format(types.UID(name)),
		},
	}}
	pod.Spec.Containers = []corev1.Container{container("app"), container("log")}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, ObservedGeneration: 2,
		ContainerStatuses: []corev1.ContainerStatus{{Name: "app", Ready: true}, status},
		Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}},
	}
	return pod
}

func waiting(reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
}

func TestPodsInFlightThatDoNotStartAreNamed(t *testing.T) {
	killed := waiting("CrashLoopBackOff")
	killed.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "OOMKilled"}
	tl := newTally()
	tl.SetSnapshot(match.Build([]*inject.Program{crowdProgram(t, "logging", "yes", "log")}, map[string]labels.Set{}))
	for _, pod := range []*corev1.Pod{
		updatedPod("c", true, waiting("ImagePullBackOff")),
		updatedPod("b", true, waiting("ImagePullBackOff")),
		updatedPod("d", true, killed),
		updatedPod("e", true, waiting("ContainerCreating")),             // passes
		updatedPod("f", false, waiting("ImagePullBackOff")),             // was broken before
		updatedPod("g", true, corev1.ContainerStatus{State: running()}), // is not replaced yet
	} {
		tl.Set(podstate.FromPod(pod))
	}
	want := []appsv1beta1.SidecarSetPodGroup{
		{Reason: "ImagePullBackOff", Pods: 2, First: []string{"shop/b", "shop/c"}}, {Reason: "OOMKilled", Pods: 1, First: []string{"shop/d"}},
	}
	if diff := cmp.Diff(want, tl.State("logging").Groups.Failing); diff != "" {
		t.Errorf("failing Pods (-want +got):\n%s", diff)
	}
	if got := tl.State("unknown").Groups; len(got.Failing)+len(got.Uninjected) > 0 {
		t.Errorf("an unknown SidecarSet has the groups %+v", got)
	}
}

// A native sidecar counts like any other: a Pod that is Ready all the time counts as ready
// with its native sidecar once the kubelet runs a new container with another image.
func TestReadyPodsHaveTheirNativeSidecars(t *testing.T) {
	tl := newTally()
	set := fixtures.SidecarSet("logging").Select("inject", "yes").Native("log", "log:v2")
	tl.SetSnapshot(match.Build([]*inject.Program{fixtures.Program(t, set.Map())}, map[string]labels.Set{}))
	pod := updatedPod("a", true, corev1.ContainerStatus{State: running(), Ready: true, Started: new(true)})
	pod.Spec.InitContainers, pod.Spec.Containers = pod.Spec.Containers[1:], pod.Spec.Containers[:1]
	pod.Spec.InitContainers[0].RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses = pod.Status.ContainerStatuses[1:], pod.Status.ContainerStatuses[:1]
	pod.Status.Conditions[0].Status = corev1.ConditionTrue
	for _, tc := range []struct {
		id, image string
		ready     int32
	}{{"containerd://old", "log@sha256:old", 0}, {"containerd://new", "log@sha256:new", 1}} {
		pod.Status.InitContainerStatuses[0].ContainerID, pod.Status.InitContainerStatuses[0].ImageID = tc.id, tc.image
		tl.Set(podstate.FromPod(pod))
		if n := tl.State("logging").Count; n.Matched != 1 || n.Ready != tc.ready {
			t.Errorf("with container %s: %+v, want %d ready", tc.id, n.Counters, tc.ready)
		}
	}
}

func running() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Unix(1767323000, 0))}}
}

// The first names are those of a sorted list of all names, after each of many
// arrivals and departures in any order.
func TestGroupsNameTheFirstOfThousands(t *testing.T) {
	const pods = 3000
	tl := newTally()
	tl.SetSnapshot(match.Build([]*inject.Program{crowdProgram(t, "logging", "yes", "log")}, map[string]labels.Set{}))
	present := map[int]bool{}
	first := func() (names []string) {
		for i := 0; i < pods && len(names) < 5; i++ {
			if present[i] {
				names = append(names, fmt.Sprintf("shop/p%04d", i))
			}
		}
		return names
	}
	for step := range 4 * pods {
		i := step * 7919 % pods
		if step >= pods {
			i = step * 104729 % pods
		}
		r := podstate.FromPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: fmt.Sprintf("p%04d", i), Labels: map[string]string{"inject": "yes"}, CreationTimestamp: metav1.Unix(1, 0),
		}})
		if present[i] = !present[i]; present[i] {
			tl.Set(r)
		} else {
			tl.Delete(r)
		}
		if step%97 != 0 && step < 4*pods-1 {
			continue
		}
		var want []appsv1beta1.SidecarSetPodGroup
		if names := first(); len(names) > 0 {
			n := tl.State("logging").Count
			want = []appsv1beta1.SidecarSetPodGroup{{Reason: appsv1beta1.ReasonMissedAtCreation, Pods: n.Uninjected, First: names}}
		}
		if diff := cmp.Diff(want, tl.State("logging").Groups.Uninjected); diff != "" {
			t.Fatalf("step %d: uninjected Pods (-want +got):\n%s", step, diff)
		}
	}
}

// BenchmarkUninjectedPods measures the worst event of 100,000 uninjected Pods: one leaves its
// group, or joins it.
func BenchmarkUninjectedPods(b *testing.B) {
	const pods = 100_000
	tl := tally.New(tally.Options{})
	tl.SetSnapshot(match.Build([]*inject.Program{crowdProgram(b, "logging", "yes", "log")}, map[string]labels.Set{}))
	records := make([]*podstate.Record, pods)
	for i := range records {
		records[i] = podstate.FromPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprint("shop-", i%50), Name: fmt.Sprintf("web-7c9d8f6b5-x%06d", i*7919%pods), Labels: map[string]string{"inject": "yes"},
		}})
		tl.Set(records[i])
	}
	start, n := cpu(b), 0
	for b.Loop() {
		r := records[n/2*104729%pods]
		if n++; n%2 == 1 {
			tl.Delete(r)
		} else {
			tl.Set(r)
		}
		tl.Changed(func(string) {})
	}
	b.ReportMetric(float64(cpu(b)-start)/float64(n), "cpu-ns/op")
}
