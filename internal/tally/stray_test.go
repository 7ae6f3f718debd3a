package tally_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// addSidecar adds a sidecar that no Pod has yet, in a budget of one Pod.
func addSidecar(s *appsv1beta1.SidecarSet) {
	s.Spec.UpdateStrategy.MaxUnavailable = new(intstr.FromInt32(1))
	s.Spec.Containers = append(s.Spec.Containers, appsv1beta1.SidecarContainer{Container: corev1.Container{Name: "added", Image: "a"}})
}

// down is a Pod that was updated while it was available, and is not ready.
func down(p *corev1.Pod) *corev1.Pod {
	next := of(moved(p, "v2", time.Unix(1001, 0)), p.CreationTimestamp.Unix())
	next.Status.Conditions[0].Status = corev1.ConditionFalse
	next.Status.ContainerStatuses[0].Ready = false
	return next
}

// restarted is that Pod once its new container runs.
func restarted(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	p.Status.ObservedGeneration = p.Generation
	s := &p.Status.ContainerStatuses[0]
	s.ContainerID, s.ImageID, s.Ready = "c://v2", "r@sha256:v2", true
	s.State.Running.StartedAt = metav1.Unix(1002, 0)
	p.Status.Conditions[0].Status = corev1.ConditionTrue
	return p
}

func (r *rebuilt) wantUsed(t *testing.T, what string, want int) {
	t.Helper()
	if used := r.State("log").Rollout.Used; used != want {
		t.Errorf("%s: %d places are used, want %d", what, used, want)
	}
}

// A Pod that was updated in place and is not back keeps its place, also if it lacks a
// sidecar that was added since.
func TestAPodInFlightThatLacksAnAddedSidecarKeepsItsPlace(t *testing.T) {
	for _, mode := range []string{"Outdated", "Uninjected", "All"} {
		for name, tc := range map[string]struct {
			change func(*corev1.Pod)
			want   string
		}{
			"it may be evicted":      {func(*corev1.Pod) {}, "p-0"},
			"it must not be evicted": {func(p *corev1.Pod) { p.Annotations["karpenter.sh/do-not-disrupt"] = "true" }, ""},
		} {
			t.Run(mode+", "+name, func(t *testing.T) {
				r := newRebuilt(t, mode)
				moving := down(of(carrier(0, "v1"), 500))
				tc.change(moving)
				set(r.Tally, moving, of(carrier(1, "v1"), 500))
				r.change(t, mode, "v3", addSidecar)
				r.lead()
				r.wantUsed(t, "while it is not back", 1)
				r.wantDue(t, "while it is not back", tc.want)
				set(r.Tally, restarted(moving))
				r.wantUsed(t, "when it is back", 0)
				if got := r.due(t); len(got) != 1 {
					t.Errorf("%v are to be evicted, want one", got)
				}
			})
		}
	}
}

// The same without recreation: the next change of an image finds Pods that have the
// sidecar.
func TestAPodInFlightKeepsItsPlaceWithoutRecreation(t *testing.T) {
	r := newRebuilt(t, "Never")
	moving := down(of(carrier(0, "v1"), 500))
	whole := of(carrier(1, "v3"), 1000)
	whole.Spec.Containers = append(whole.Spec.Containers, corev1.Container{Name: "added", Image: "a"})
	set(r.Tally, moving, whole)
	r.change(t, "Never", "v4", func(s *appsv1beta1.SidecarSet) {
		addSidecar(s)
		s.Spec.Containers[0].Image = "v4"
	})
	r.program.HashWithoutImage = "without"
	r.reload()
	r.lead()
	if due := r.Due("log", 10).Updates; len(due) != 0 {
		t.Errorf("%+v are due while a Pod is down", due)
	}
	r.wantUsed(t, "while it is not back", 1)
	set(r.Tally, restarted(moving))
	if due := r.Due("log", 10).Updates; len(due) != 1 || due[0].Name != "p-1" {
		t.Errorf("%+v are due, want p-1", due)
	}
	r.wantUsed(t, "when the other one is being written", 1)
}

// A Pod whose Node is lost takes no place, also if it lacks a sidecar that was added.
func TestAPodOnALostNodeThatLacksAnAddedSidecarTakesNoPlace(t *testing.T) {
	r := newRebuilt(t, "Never")
	moving := down(of(carrier(0, "v1"), 500))
	set(r.Tally, moving)
	r.change(t, "Never", "v3", addSidecar)
	r.wantUsed(t, "while it is not back", 1)
	var names []string
	for range 2 {
		for _, record := range r.Overdue("log", 10) {
			names = append(names, record.Name)
			r.Lost(record.Namespace, record.Name, record.UID)
		}
	}
	if r.wantUsed(t, "with its Node", 0); len(names) != 1 {
		t.Errorf("%v are overdue, want one", names)
	}
}
