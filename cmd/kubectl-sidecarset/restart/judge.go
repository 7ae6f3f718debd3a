package restart

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/explain"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/world"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/revision"
)

// Judge says which Pods only new Pods can replace. It asks the rules of the leader. It is not safe
// for concurrent use.
type Judge struct {
	World *world.World
	// Updater is of the SidecarSet.
	*explain.Updater
	// Node returns the state of a Node.
	Node func(name string) (inplace.Node, error)
	// Resizes: the API server has the subresource pods/resize.
	Resizes bool
}

// Stopped says why new Pods would not get the current content of a SidecarSet, or why Pods
// should not be replaced now; "" if they would. passes: that may end by itself within seconds.
func Stopped(set *appsv1beta1.SidecarSet) (why string, passes bool) {
	ready := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady)
	ref, pinned := revision.ReferenceOf(set.Spec.InjectionStrategy.Revision)
	switch {
	case set.DeletionTimestamp != nil:
		return "it is being deleted", false
	case set.Spec.InjectionStrategy.Paused:
		return "its injection is paused, so new Pods would not get it: set spec.injectionStrategy.paused to false", false
	case pinned:
		return fmt.Sprintf("spec.injectionStrategy.revision names %s, so new Pods would get that revision: remove it", ref), false
	case set.Spec.UpdateStrategy.Paused:
		return "its rollout is paused: kubectl sidecarset rollout resume " + set.Name, false
	case set.Status.ObservedGeneration != set.Generation, ready == nil, ready.ObservedGeneration != set.Generation:
		return fmt.Sprintf("the leader has not observed generation %d yet: try again; kubectl sidecarset doctor says whether it runs", set.Generation), true
	case ready.Status != metav1.ConditionTrue:
		return fmt.Sprintf("it is not Ready, so new Pods might not get it (%s): %s", ready.Reason, ready.Message), true
	}
	return "", false
}

// Needs says why only a new Pod in the place of this one can carry the current content; "" if that
// is not so. stays says why the new Pod would not carry it either; "" if it would.
func (j *Judge) Needs(ctx context.Context, pod *corev1.Pod) (reason, stays string, err error) {
	record := podstate.FromPod(pod)
	if !record.Active || record.TooLarge || !j.World.Excluded.Eligible(pod.Namespace, record.Facts.Mirror) {
		return "", "", nil
	}
	programs, err := j.World.Selecting(ctx, pod.Namespace, labels.Set(pod.Labels))
	if err != nil {
		return "", "", err
	}
	name := j.Program.Name()
	if !slices.ContainsFunc(programs, func(p *inject.Program) bool { return p.Name() == name }) {
		return "", "", nil
	}
	switch count := j.Content.Count(record, j.World.Now.Unix()); {
	case count&inplace.Updated != 0:
		return "", "", nil
	case count&inplace.Matched != 0:
		reason, err = j.outdated(pod)
	case count&inplace.Lacking != 0:
		reason = j.Content.WhyLacking(record)
	}
	if reason != "" && !inject.Renews(programs, name, pod.Labels) {
		stays = "a new Pod would not get the current content either: kubectl sidecarset explain " + pod.Name + " -n " + pod.Namespace
	}
	return reason, stays, err
}

// outdated says why a Pod with an earlier content cannot be updated in place. The Pods that
// updateStrategy.selector leaves out stay.
func (j *Judge) outdated(pod *corev1.Pod) (reason string, err error) {
	strategy := &j.Program.Set.Spec.UpdateStrategy
	if strategy.Selector != nil {
		selector, err := metav1.LabelSelectorAsSelector(strategy.Selector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			return "", err
		}
	}
	if strategy.Type == appsv1beta1.NotUpdateSidecarSetStrategyType {
		return string(strategy.Type), nil
	}
	update, _, err := j.Update(pod, j.Node, j.World.Now)
	v := update.Verdict
	switch {
	case err != nil:
		return string(inplace.UpdateImpossible), nil //nolint:nilerr // the leader cannot compute it either
	case v.Way == inplace.Resize && !j.Resizes:
		return string(inplace.ResizeUnsupported), nil
	case v.Way == inplace.Recreate, explain.NewPodHelps(v.Reason):
		return string(v.Reason), nil
	}
	return "", nil
}

// Has reports whether a Pod carries the current content.
func (j *Judge) Has(pod *corev1.Pod) bool {
	return j.Content.Count(podstate.FromPod(pod), time.Now().Unix())&inplace.Updated != 0
}
