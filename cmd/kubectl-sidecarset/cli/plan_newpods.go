package cli

import (
	"fmt"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/outcome"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/rollout"
)

// newPodsWait says when new Pods get a changed revision with sidecarset.io/new-pods: Stable; "" if the revision does
// not change, or if they get it at once as always.
func newPodsWait(old map[string]any, compiled *inject.Compiled, f *outcome.Plan) string {
	set := compiled.Set
	before, err := inject.Compile(old)
	if err != nil || before == nil || before.Hash == compiled.Hash || set.Status.StableRevision == "" ||
		set.Annotations[appsv1beta1.AnnotationNewPods] != appsv1beta1.StableNewPods || set.Spec.InjectionStrategy.Revision != nil {
		return ""
	}
	pods, said := -f.Partition, appsv1beta1.AnnotationNewPods+": "+appsv1beta1.StableNewPods
	for _, g := range f.Pods {
		switch g.Outcome {
		case outcome.InPlace, outcome.Resize, outcome.HotUpgrade:
			pods += g.Pods
		}
	}
	if strategy := rollout.NewStrategy(set); pods <= 0 || strategy.Allowed(pods) == 0 {
		return "get this at once, because no running Pod is updated in place (" + said + ")"
	}
	wanted := rollout.Evidence{Pending: pods}.Wanted()
	return fmt.Sprintf("get this when %s available with it; until then %s (%s)", podsAre(wanted), set.Status.StableRevision, said)
}

func podsAre(n int) string {
	if n == 1 {
		return "1 running Pod is"
	}
	return fmt.Sprintf("%d running Pods are", n)
}
