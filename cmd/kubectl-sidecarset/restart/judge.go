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
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/clusterview"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/explain"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/internal/rollout"
)

// Judge says which Pods only new Pods can replace. It asks the rules of the leader. It is not safe
// for concurrent use.
type Judge struct {
	World *clusterview.View
	// Updater is of the SidecarSet.
	*explain.Updater
	// Node returns the state of a Node.
	Node func(name string) (inplace.Node, error)
	// Resizes: the API server has the subresource pods/resize.
	Resizes bool
}

// Stopped says why new Pods would not get the current revision of a SidecarSet, or why Pods
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

// Need says what a Pod needs.
type Need struct {
	// Reason says why only a new Pod in the place of this one can have the current revision; "" if
	// that is not so.
	Reason string
	// Stays says why the new Pod would not have it either; "" if it would.
	Stays string
	// LeftOut: updateStrategy.selector leaves the Pod out, which has an earlier revision. There is no
	// Reason then.
	LeftOut bool
}

// Needs returns what a Pod needs.
func (j *Judge) Needs(ctx context.Context, pod *corev1.Pod) (need Need, err error) {
	record := podstate.FromPod(pod)
	if !record.Active || record.TooLarge || !j.World.Excluded.Eligible(pod.Namespace, record.Facts.Mirror) {
		return need, nil
	}
	selecting, err := j.World.Selecting(ctx, pod.Namespace, labels.Set(pod.Labels))
	if err != nil {
		return need, err
	}
	name := j.Compiled.Name()
	if !slices.ContainsFunc(selecting, func(p *inject.Compiled) bool { return p.Name() == name }) {
		return need, nil
	}
	switch count := j.Revision.Count(record, j.World.Now.Unix()); {
	case count&inplace.Updated != 0:
	case count&inplace.Matched != 0 && !rollout.NewStrategy(j.Compiled.Set).Selects(labels.Set(pod.Labels)):
		need.LeftOut = true
	case count&inplace.Matched != 0:
		need.Reason = j.outdated(pod)
	case count&inplace.Uninjected != 0:
		need.Reason = j.Revision.WhyUninjected(record)
	}
	if need.Reason != "" && !inject.Renews(selecting, name, pod.Labels) {
		need.Stays = "a new Pod would not get the current revision either: kubectl sidecarset explain " + pod.Name + " -n " + pod.Namespace
	}
	return need, nil
}

// outdated says why a Pod with an earlier revision cannot be updated in place.
func (j *Judge) outdated(pod *corev1.Pod) (reason string) {
	if kind := j.Compiled.Set.Spec.UpdateStrategy.Type; kind == appsv1beta1.NotUpdateSidecarSetStrategyType {
		return string(kind)
	}
	update, _, err := j.Update(pod, j.Node, j.World.Now)
	v := update.Verdict
	switch {
	case err != nil:
		return string(inplace.UpdateImpossible) // the leader cannot compute it either
	case v.Method == inplace.Resize && !j.Resizes:
		return string(inplace.ResizeUnsupported)
	case explain.NewPodHelps(v.Reason):
		return string(v.Reason)
	}
	return ""
}

// Has reports whether a Pod has the current revision.
func (j *Judge) Has(pod *corev1.Pod) bool {
	return j.Revision.Count(podstate.FromPod(pod), time.Now().Unix())&inplace.Updated != 0
}
