package tally_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/tally"
)

// A Pod that was back from its update for ten minutes is not in flight again, whatever happens
// to it later. A Pod that breaks before that time is.
func TestAnUpdateIsOverWhenThePodWasBackForLong(t *testing.T) {
	const updated, started = 2000, 2010 // the Pod is back then
	breaks := map[string]func(p *corev1.Pod, at int64){
		"the node restarts, and the app does not become ready": func(p *corev1.Pod, at int64) {
			p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, metav1.Unix(at, 0)
			p.Status.ContainerStatuses[0].ContainerID = "c://after"
			p.Status.ContainerStatuses[0].State.Running.StartedAt = metav1.Unix(at+60, 0)
		},
		"the sidecar crashes": func(p *corev1.Pod, at int64) {
			p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, metav1.Unix(at, 0)
			status := &p.Status.ContainerStatuses[0]
			status.Ready, status.State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		},
		"the sidecar restarts, and is not ready yet": func(p *corev1.Pod, at int64) {
			p.Status.Conditions[0].Status, p.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, metav1.Unix(at, 0)
			p.Status.ContainerStatuses[0].ContainerID, p.Status.ContainerStatuses[0].Ready = "c://after", false
			p.Status.ContainerStatuses[0].State.Running.StartedAt = metav1.Unix(at+1, 0)
		},
	}
	for name, breaks := range breaks {
		for _, tc := range []struct {
			when      string
			listed    int64 // when the leader begins
			at        int64 // when the Pod breaks
			over      bool
			forgotten bool // another leader begins after that
		}{
			{"after ten minutes", started, started + 601, true, false},
			{"before ten minutes are over", started, started + 500, false, false},
			{"months later, under a new leader that has seen it back", 9_000_000, 9_000_010, true, false},
			{"before a new leader begins", started, started + 601, false, true},
		} {
			t.Run(name+" "+tc.when, func(t *testing.T) {
				tl := newTally()
				one := func(s *appsv1beta1.SidecarSet) { s.Spec.UpdateStrategy.MaxUnavailable = new(intstr.FromInt32(1)) }
				rolling(t, tl, "v2", one)
				p := moved(carrier(0, "v1"), "v2", time.Unix(updated, 0))
				p.Status = carrier(0, "v2").Status
				p.Status.Conditions[0].LastTransitionTime = metav1.Unix(1000, 0)
				p.Status.ContainerStatuses[0].State.Running.StartedAt = metav1.Unix(started, 0)
				tl.Settle(time.Unix(tc.listed, 0))
				set(tl, p, carrier(1, "v2"))
				if used := tl.State("log").Rollout.Used; used != 0 {
					t.Fatalf("%d places are used while the Pod is back, want none", used)
				}
				tl.Settle(time.Unix(tc.at, 0))
				p.ResourceVersion = "3"
				breaks(p, tc.at)
				if tc.forgotten {
					tl = newTally()
					rolling(t, tl, "v2", one)
					tl.Settle(time.Unix(tc.at, 0))
				}
				set(tl, p, carrier(1, "v2"))
				want := 1
				if tc.over {
					want = 0
				}
				if used := tl.State("log").Rollout.Used; used != want {
					t.Errorf("%d places are used, want %d", used, want)
				}
				expectNoTrouble(t, tl, tc.over)
				rolling(t, tl, "v3", one)
				due := tl.Due("log", 10)
				if len(due.Updates) != 1+1-want {
					t.Errorf("%d Pods are due for the next content, want %d", len(due.Updates), 2-want)
				}
				if first := due.Updates[0]; first.Name != p.Name || first.Over != tc.over || first.InFlight == tc.over {
					t.Errorf("the first is %+v, want %s", first, p.Name)
				}
			})
		}
	}
}

// expectNoTrouble checks that the rollout reports no containers of Pods that are not in
// flight.
func expectNoTrouble(t *testing.T, tl *tally.Tally, none bool) {
	t.Helper()
	if failing := tl.State("log").Groups.Failing; none && len(failing) != 0 {
		t.Errorf("failing are %v, want none", failing)
	}
}
