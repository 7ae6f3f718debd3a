package status

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// generic returns the condition by which kstatus and tools that use it read a rollout.
// They know no other conditions of a kind that they do not know. It is Reconciling,
// Stalled, or none. They repeat Progressing and Degraded if these are True, and are
// absent otherwise.
//
// Blocked Pods do not make a SidecarSet Stalled. Tools stop at an object that is, and
// what they apply next may be what replaces these Pods.
func generic(progressing, degraded metav1.Condition) (c metav1.Condition, ok bool) {
	switch {
	case degraded.Status == metav1.ConditionTrue && degraded.Reason != appsv1beta1.ReasonBlocked:
		c, c.Type = degraded, appsv1beta1.ConditionStalled
	case progressing.Status == metav1.ConditionTrue:
		c, c.Type = progressing, appsv1beta1.ConditionReconciling
	default:
		return c, false
	}
	c.Message = cut(c.Message, maxGeneric)
	return c, true
}

// setGeneric makes the condition that is generic, if any, the only one in a status.
func setGeneric(s *appsv1beta1.SidecarSetStatus, progressing, degraded metav1.Condition, now time.Time) {
	c, ok := generic(progressing, degraded)
	withoutGeneric(&s.Conditions, c.Type)
	if ok {
		setter(s, now)(c)
	}
}

// maxGeneric is the largest length of a repeated message.
const maxGeneric = 120

// withoutGeneric removes the conditions that are generic, except one.
func withoutGeneric(conditions *[]metav1.Condition, except string) {
	for _, kind := range []string{appsv1beta1.ConditionReconciling, appsv1beta1.ConditionStalled} {
		if kind != except {
			meta.RemoveStatusCondition(conditions, kind)
		}
	}
}
