package progress

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

func condition(kind, reason, message string, is bool) metav1.Condition {
	status := metav1.ConditionFalse
	if is {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: 2}
}

func rolling(matched, updated int32) *appsv1beta1.SidecarSet {
	set := &appsv1beta1.SidecarSet{}
	set.Name, set.Generation = "log-agent", 2
	set.Status = appsv1beta1.SidecarSetStatus{
		ObservedGeneration: 2, MatchedPods: matched, UpdatedPods: updated,
		Conditions: []metav1.Condition{condition(appsv1beta1.ConditionProgressing, appsv1beta1.ReasonRollingOut, "moving", true)},
	}
	return set
}

func because(set *appsv1beta1.SidecarSet, progressing string, degraded string) *appsv1beta1.SidecarSet {
	set.Status.Conditions = []metav1.Condition{condition(appsv1beta1.ConditionProgressing, progressing, "says", false)}
	if degraded != "" {
		set.Status.Conditions = append(set.Status.Conditions, condition(appsv1beta1.ConditionDegraded, degraded, "because", true))
	}
	return set
}

func TestOutcome(t *testing.T) {
	blocked := func(reason, degraded string) *appsv1beta1.SidecarSet {
		set := because(rolling(3, 2), appsv1beta1.ReasonBlocked, degraded)
		set.Status.BlockedPods = []appsv1beta1.SidecarSetPodGroup{{Reason: reason, Pods: 1, First: []string{"shop/web-1"}}}
		return set
	}
	paused := because(rolling(3, 1), appsv1beta1.ReasonPaused, "")
	paused.Spec.UpdateStrategy.Paused = true
	unseen := because(rolling(3, 3), appsv1beta1.ReasonComplete, "")
	unseen.Generation = 3
	uninjected := because(rolling(3, 3), appsv1beta1.ReasonBlocked, "")
	uninjected.Status.Uninjected = []appsv1beta1.SidecarSetPodGroup{{Reason: appsv1beta1.ReasonOlderThanSidecarSet, Pods: 2, First: []string{"shop/old"}}}
	tests := map[string]struct {
		set  *appsv1beta1.SidecarSet
		want string
		says string
	}{
		"moving":                             {rolling(3, 1), "waits", "moving"},
		"complete":                           {because(rolling(3, 3), appsv1beta1.ReasonComplete, ""), "done", "says"},
		"the partition is the user's":        {because(rolling(3, 1), appsv1beta1.ReasonPartitionReached, ""), "done", "says"},
		"complete, of the generation before": {unseen, "waits", "generation 3"},
		"nothing is written":                 {&appsv1beta1.SidecarSet{}, "waits", "has not written"},
		"paused":                             {paused, "fails", "rollout resume log-agent"},
		"maxUnavailable is 0":                {because(rolling(3, 1), appsv1beta1.ReasonPaused, ""), "fails", "says"},
		"stalled":                            {because(rolling(3, 1), appsv1beta1.ReasonStalled, appsv1beta1.ReasonStalled), "fails", "rollout undo log-agent"},
		"not recorded":                       {because(rolling(3, 3), appsv1beta1.ReasonComplete, appsv1beta1.ReasonRevisionNotRecorded), "fails", "because"},
		"blocked until a user acts":          {blocked("ImmutableFieldChanged", appsv1beta1.ReasonBlocked), "fails", "1 ImmutableFieldChanged: shop/web-1"},
		"blocked by what ends by itself":     {blocked("NodeNotReady", ""), "waits", "says"},
		"older Pods":                         {uninjected, "fails", "2 OlderThanSidecarSet: shop/old and 1 more; created before the SidecarSet; recreate the Pod\nkubectl sidecarset rollout restart log-agent restarts the workloads of the 2 Pods that need it"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			summary := Of(tc.set)
			done, says, err := summary.Outcome()
			got := "waits"
			switch {
			case err != nil:
				got, says = "fails", err.Error()
			case done:
				got = "done"
			}
			if got != tc.want || !strings.Contains(says, tc.says) {
				t.Errorf("Outcome() = %s, %q, want %s and %q", got, says, tc.want, tc.says)
			}
		})
	}
}
