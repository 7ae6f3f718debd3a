package status

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/rollout"
)

// isHeld reports whether new Pods get an earlier revision, because the current one is not stable.
func (o Observation) isHeld() bool { return o.Hold && o.Revision != nil && o.Revision.Held }

// heldMessage says which revision new Pods get, what it takes to give them the current one, and how a user does
// that.
func heldMessage(o Observation) string {
	said := fmt.Sprintf("New Pods get %s until running Pods are available with %s", o.Revision.NewPods, o.Revision.Name)
	if o.Plan != nil {
		said += ": " + availableOf(o.Plan.Evidence)
	}
	return said + fmt.Sprintf(". To give it to new Pods now: kubectl annotate sidecarset %s %s-", o.Name, appsv1beta1.AnnotationNewPods)
}

// availableOf says how many of the Pods that it takes are available: 1 of 3 available.
func availableOf(e rollout.Evidence) string {
	return fmt.Sprintf("%d of %d available", e.Available, e.Wanted())
}

// fails reports whether sidecars do not run with a revision that new Pods do not get for that reason.
func fails(ready *metav1.Condition, degraded metav1.Condition) bool {
	return degraded.Reason == appsv1beta1.ReasonSidecarsNotRunning && ready != nil && ready.Reason == appsv1beta1.ReasonRevisionNotStable
}
