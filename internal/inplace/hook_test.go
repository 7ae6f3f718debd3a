package inplace

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// While a postStart hook runs, the kubelet reports nothing. So if Ready turns False long
// after the start, that does not show that the container was ready before. The node tier
// has the same on a kubelet.
func TestAHookHidesWhetherAPodWasBack(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	hook := &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 8}}}
	tests := map[string]struct {
		hook  *corev1.Lifecycle
		ready bool // the changed container; the Pod is not
		want  State
	}{
		"without a hook the times prove it":         {nil, false, Broken},
		"with one they do not":                      {hook, false, Moving},
		"a container that is ready is not to blame": {hook, true, Broken},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Generation: 2},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v2", Lifecycle: tc.hook}}},
				Status: corev1.PodStatus{
					ObservedGeneration: 2, Phase: corev1.PodRunning,
					Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(start.Add(8 * time.Second))}},
					ContainerStatuses: []corev1.ContainerStatus{{
						Name: "c", ContainerID: "new", ImageID: "sha256:2", Ready: tc.ready, Started: new(true),
						State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(start)}},
					}},
				},
			}
			mark := Mark{Generation: 2, At: start, WasReady: true, Containers: map[string]Before{"c": {ID: "old", Image: "v1", Digest: "sha256:1"}}}
			if got := Observe(pod, mark).State(); got != tc.want {
				t.Errorf("the state is %d, want %d", got, tc.want)
			}
		})
	}
}
