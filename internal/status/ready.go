package status

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Readiness reports whether the next Pod that a SidecarSet selects will be
// injected as its spec says.
type Readiness struct {
	// Ready is the answer; Reason and Message explain it, to users.
	Ready           bool
	Reason, Message string
	// Unsure is set if Ready is false only because a proof is missing. Then a condition
	// that is True for the same generation stays True.
	Unsure bool
}

// ready returns the condition, without its time, that follows from an observation and
// the previous condition. A SidecarSet that cannot be used is not ready, whatever else
// is known.
func ready(previous []metav1.Condition, o Observation) metav1.Condition {
	c := metav1.Condition{
		Type:   appsv1beta1.ConditionReady,
		Status: metav1.ConditionFalse,
	}
	if o.Problem != nil {
		c.Reason, c.Message = appsv1beta1.ReasonInvalid, invalidMessage(o.Problem)
		return c
	}
	before := meta.FindStatusCondition(previous, appsv1beta1.ConditionReady)
	if o.Readiness.Unsure && before != nil && before.Status == metav1.ConditionTrue && before.ObservedGeneration == o.Generation {
		return *before
	}
	c.Reason, c.Message = o.Readiness.Reason, bounded(o.Readiness.Message)
	if o.Readiness.Ready {
		c.Status = metav1.ConditionTrue
	}
	return c
}
