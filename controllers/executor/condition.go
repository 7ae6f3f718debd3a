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
	"github.com/sidecarset/operator/internal/podstate"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=pods/status,verbs=patch

// The reasons of the condition SidecarSetUpgradable, which are OpenKruise's.
const (
	reasonUpgradable    = "AllSidecarsetUpgradable"
	reasonNotUpgradable = "UpdateImmutableField"
)

// sayUpgradable adds the condition to a Pod that lacks it. No read is needed, because
// there is no earlier value to merge. If another writer has added the condition
// meanwhile, its values for other SidecarSets are lost; the Pod watch shows that, and
// they are written again.
func (e *Executor) sayUpgradable(ctx context.Context, program *inject.Program, of *podstate.Record) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace.Value(), Name: of.Name, UID: of.UID}}
	condition, _ := upgradableCondition(pod, program.Name(), true, nil, time.Now())
	return e.patchCondition(ctx, pod, condition)
}

// writeUpgradable writes the condition if it changes.
func (e *Executor) writeUpgradable(ctx context.Context, program *inject.Program, pod *corev1.Pod, upgradable bool) (wrote bool, err error) {
	condition, differs := upgradableCondition(pod, program.Name(), upgradable, e.unselected(pod), time.Now())
	if !differs {
		return false, nil
	}
	return true, e.patchCondition(ctx, pod, condition)
}

// patchCondition writes a condition of the Pod with this UID, in the version that was
// read if it was read.
func (e *Executor) patchCondition(ctx context.Context, pod *corev1.Pod, condition corev1.PodCondition) error {
	metadata := map[string]any{"uid": pod.UID}
	if pod.ResourceVersion != "" {
		metadata["resourceVersion"] = pod.ResourceVersion
	}
	body, err := json.Marshal(map[string]any{
		"metadata": metadata,
		"status":   map[string]any{"conditions": []corev1.PodCondition{condition}},
	})
	if err != nil {
		return fmt.Errorf("encoding a condition: %w", err)
	}
	_, err = e.patch(ctx, pod, body, "status")
	return err
}

// unselected returns whether a SidecarSet of some name is known not to select a Pod, for
// instance because it is deleted.
func (e *Executor) unselected(pod *corev1.Pod) func(sidecarSet string) bool {
	selected, err := e.Current().Select(pod.Namespace, pod.Labels, nil)
	return func(name string) bool {
		return err == nil && !slices.ContainsFunc(selected.Programs, func(p *inject.Program) bool { return p.Name() == name })
	}
}

// upgradableCondition returns the Pod's condition with a new value for one SidecarSet, and
// without values for SidecarSets that the Pod does not carry or that do not select it. (The
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
