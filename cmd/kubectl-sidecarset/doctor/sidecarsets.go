package doctor

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/readiness"
)

const pageReady = "docs/troubleshooting.md#ready-is-false"

// inForce is what Ready says when there is nothing else to say.
var inForce = readiness.Of(readiness.SidecarSet{Webhook: readiness.Webhook{Written: true, Propagated: true}}).Message

// lookAtSidecarSets says which SidecarSets need a look by their conditions.
func (f *facts) lookAtSidecarSets(_ context.Context, r *Result) {
	for _, object := range f.parts.SidecarSets {
		if set, err := hub.Object(object).Hub(); err != nil {
			r.add(Error, "SidecarSet "+hub.NameOf(object), pageReady, "correct the field", "%v", err)
		} else if set.Set.DeletionTimestamp == nil {
			lookAtSidecarSet(set.Set, r)
		}
	}
}

func lookAtSidecarSet(set *appsv1beta1.SidecarSet, r *Result) {
	object, remedy := "SidecarSet "+set.Name, "kubectl sidecarset status "+set.Name+" says what to do"
	if ready := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady); ready != nil {
		if ready.Status != metav1.ConditionTrue {
			r.add(Error, object, pageReady, remedy, "is not Ready (%s): %s", ready.Reason, ready.Message)
		} else if more := strings.TrimSpace(strings.TrimPrefix(ready.Message, inForce)); more != "" {
			r.add(Warning, object, pageReady, remedy, "%s", more)
		}
	}
	if degraded := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionDegraded); degraded != nil && degraded.Status == metav1.ConditionTrue {
		level := Error
		if degraded.Reason == appsv1beta1.ReasonBlocked {
			level = Warning
		}
		r.add(level, object, "docs/troubleshooting.md#degraded", remedy, "is Degraded (%s): %s", degraded.Reason, degraded.Message)
	}
}
