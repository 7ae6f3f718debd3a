package status

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// setGeneric sets the condition from which kstatus, and tools that use it, read the state of a
// rollout: Reconciling or Stalled. It removes the other one, or both. These tools look at no
// other conditions of a kind that they do not know. Reconciling repeats Progressing, and
// Stalled repeats Degraded; each is absent if the repeated condition is not True.
//
// Blocked Pods do not make a SidecarSet Stalled. Tools stop at a Stalled object, and an object
// that they would apply next may replace these Pods.
func setGeneric(s *appsv1beta1.SidecarSetStatus, progressing, degraded metav1.Condition, now time.Time) {
	var c metav1.Condition
	switch {
	case degraded.Status == metav1.ConditionTrue && degraded.Reason != appsv1beta1.ReasonBlocked:
		c, c.Type = degraded, appsv1beta1.ConditionStalled
	case progressing.Status == metav1.ConditionTrue:
		c, c.Type = progressing, appsv1beta1.ConditionReconciling
	}
	for _, kind := range []string{appsv1beta1.ConditionReconciling, appsv1beta1.ConditionStalled} {
		if kind != c.Type {
			meta.RemoveStatusCondition(&s.Conditions, kind)
		}
	}
	if c.Type != "" {
		c.Message = cut(c.Message, maxGeneric)
		set(s, c, now)
	}
}

// maxGeneric is the largest length of a repeated message.
const maxGeneric = 120
