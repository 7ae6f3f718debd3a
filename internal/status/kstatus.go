package status

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// generic returns the condition by which kstatus and tools that use it read a rollout.
// They know no other conditions of a kind that they do not know. It is Reconciling,
// Stalled, or none: they say what Progressing and Degraded say, are True, and are absent
// otherwise.
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

// maxGeneric bounds what is said twice.
const maxGeneric = 120

// withoutGeneric removes the conditions that are generic, except one.
func withoutGeneric(conditions *[]metav1.Condition, except string) {
	for _, kind := range []string{appsv1beta1.ConditionReconciling, appsv1beta1.ConditionStalled} {
		if kind != except {
			meta.RemoveStatusCondition(conditions, kind)
		}
	}
}
