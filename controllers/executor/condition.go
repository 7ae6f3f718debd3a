package executor

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tracker"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=pods/status,verbs=patch

// The reasons of the condition SidecarSetUpgradable, which are OpenKruise's.
const (
	reasonUpgradable    = "AllSidecarsetUpgradable"
	reasonNotUpgradable = "UpdateImmutableField"
)

// label writes the condition of the Pod that was read, if it is not as it should be.
func (e *Executor) label(ctx context.Context, a *attempt) (tracker.Result, error) {
	record := podstate.FromPod(a.pod)
	if !record.Active || !a.Compiled.Selector.Matches(record.Labels.Labels()) || a.Revision.Count(record, time.Now().Unix())&inplace.Matched == 0 {
		return unneeded, nil
	}
	way := a.Revision.Judge(record, a.Node).Method
	if way != inplace.Current && way != inplace.Recreate {
		return unneeded, nil
	}
	condition, differs := upgradableCondition(a.pod, a.Compiled.Name(), way == inplace.Current, e.unselected(a.pod), time.Now())
	if !differs {
		return written(a.pod), nil
	}
	after, err := e.patchCondition(ctx, a.pod, condition)
	if err != nil {
		return tracker.Result{}, err
	}
	return written(after), nil
}

// patchCondition writes a condition of the Pod, in the version that was read.
func (e *Executor) patchCondition(ctx context.Context, pod *corev1.Pod, condition corev1.PodCondition) (*corev1.Pod, error) {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"status":   map[string]any{"conditions": []corev1.PodCondition{condition}},
	})
	if err != nil {
		return nil, fmt.Errorf("encoding a condition: %w", err)
	}
	return e.patch(ctx, pod, body, "status")
}

// unselected returns whether a SidecarSet of some name is known not to select a Pod, for
// instance because it is deleted.
func (e *Executor) unselected(pod *corev1.Pod) func(sidecarSet string) bool {
	selected, err := e.Current().Select(pod.Namespace, pod.Labels, nil)
	return func(name string) bool {
		return err == nil && !slices.ContainsFunc(selected.SidecarSets, func(p *inject.Compiled) bool { return p.Name() == name })
	}
}

// upgradableCondition returns the Pod's condition with a new value for one SidecarSet, and
// without values for SidecarSets that the Pod does not have or that do not select it. (The
// injected list of the Pod still names SidecarSets that are deleted.) unselected is not called
// if the condition has no values.
func upgradableCondition(pod *corev1.Pod, sidecarSet string, upgradable bool, unselected func(string) bool, now time.Time) (next corev1.PodCondition, differs bool) {
	next = corev1.PodCondition{Type: appsv1beta1.PodConditionUpgradable}
	if c := podstate.Condition(pod, next.Type); c != nil {
		next = *c
	}
	before := next
	var said map[string]bool
	if json.Unmarshal([]byte(next.Message), &said) != nil || said == nil {
		said = map[string]bool{} // the message is empty, null or not JSON
	}
	carried := podstate.ParseInjectedList(pod.Annotations[appsv1beta1.AnnotationInjectedList])
	for name := range said {
		if !slices.Contains(carried, name) || unselected(name) {
			delete(said, name)
		}
	}
	said[sidecarSet] = upgradable
	next.Status, next.Reason = corev1.ConditionTrue, reasonUpgradable
	for _, is := range said {
		if !is {
			next.Status, next.Reason = corev1.ConditionFalse, reasonNotUpgradable
		}
	}
	if next.Status != before.Status {
		next.LastTransitionTime = metav1.NewTime(now)
	}
	message, _ := json.Marshal(said) // a map of booleans always marshals
	next.Message = string(message)
	return next, next != before
}
