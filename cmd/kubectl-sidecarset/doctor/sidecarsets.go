package doctor

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/explain"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/readiness"
)

// inForce is what Ready says when there is nothing else to say.
var inForce = readiness.Of(readiness.SidecarSet{Entry: readiness.Entry{Written: true, Proven: true}}).Message

// lookAtSidecarSets says what the leader has found out about the SidecarSets and their Pods.
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
	object, describe, status := "SidecarSet "+set.Name, "kubectl describe sidecarset "+set.Name, &set.Status
	if status.ObservedGeneration < set.Generation {
		r.add(Warning, object, pageProcess, "wait for five seconds; if it stays, look at the leader's log", "the leader has seen generation %d, and %d is stored", status.ObservedGeneration, set.Generation)
	}
	if ready := meta.FindStatusCondition(status.Conditions, appsv1beta1.ConditionReady); ready != nil {
		if ready.Status != metav1.ConditionTrue {
			r.add(Error, object, pageReady, describe, "is not Ready (%s): %s", ready.Reason, ready.Message)
		} else if more := strings.TrimSpace(strings.TrimPrefix(ready.Message, inForce)); more != "" {
			r.add(Warning, object, pageReady, describe, "%s", more)
		}
	}
	degraded := meta.FindStatusCondition(status.Conditions, appsv1beta1.ConditionDegraded)
	if degraded != nil && degraded.Status == metav1.ConditionTrue {
		if degraded.Reason != appsv1beta1.ReasonBlocked {
			r.add(Error, object, "docs/troubleshooting.md#degraded", "do what the message says; after a bad image, apply a good one (docs/rollouts.md#a-bad-image)", "is Degraded (%s): %s", degraded.Reason, degraded.Message)
		} else {
			for _, group := range status.BlockedPods {
				meaning, remedy := explain.Blocked(inplace.Reason(group.Reason))
				r.add(Warning, object, "docs/troubleshooting.md#a-pod-is-blocked", remedy, "%s cannot be updated in place (%s): %s", many(group), group.Reason, strings.TrimSuffix(meaning+"; "+group.Message, "; "))
			}
		}
	}
	for _, group := range status.NotRunningPods {
		meaning, remedy := explain.NotRunning(group.Reason)
		r.add(Warning, object, "docs/rollouts.md#sidecars-that-do-not-run", remedy, "%s have a sidecar that does not run (container %s, %s): %s", many(group), group.Message, group.Reason, meaning)
	}
	for _, group := range status.Uninjected {
		r.add(Warning, object, "docs/troubleshooting.md#a-pod-has-no-sidecar", "kubectl sidecarset rollout restart "+set.Name, "%s lack the sidecars (%s)", many(group), group.Reason)
	}
}

func many(group appsv1beta1.SidecarSetPodGroup) string {
	return fmt.Sprintf("%d Pods, such as %s,", group.Pods, strings.Join(group.First, ", "))
}
