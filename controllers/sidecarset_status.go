package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/status"
)

// patchStatus writes the status if it differs from the stored one. again is when to
// reconcile again, if that is earlier than otherwise.
func (r *SidecarSetReconciler) patchStatus(ctx context.Context, p *pass) (again time.Duration, err error) {
	next := status.Next(p.before, p.seen)
	switch {
	case !p.complete && p.seen.Unrecorded == nil:
		return 0, nil
	case !p.complete: // it waits longest: recording is tried again first
		next = status.Behind(p.before, p.seen)
	}
	unknown := r.required.judge(ctx, p.object.GetLabels(), &next, p.seen.Now)
	defer func() { err = errors.Join(err, unknown) }()
	r.m.observeStatus(p.name, next)
	if status.Equal(p.before, next) {
		return 0, nil
	}
	ready := p.complete && meta.IsStatusConditionTrue(next.Conditions, appsv1beta1.ConditionReady)
	if wait := r.debounce.unwritable(p.name, ready, p.seen.Now); wait > 0 {
		return wait, nil
	}
	patch, err := statusPatch(p.object, next)
	if err != nil {
		return 0, err
	}
	r.debounce.wrote(p.name, ready, p.seen.Now)
	answer := newSidecarSet()
	answer.SetName(p.name)
	switch err := r.status.Patch(ctx, answer, client.RawPatch(types.MergePatchType, patch)); {
	case apierrors.IsNotFound(err):
		return 0, nil
	case apierrors.IsConflict(err):
		// The cache is behind. It announces the newer object when it catches up.
		r.m.statusWrites.WithLabelValues("conflict").Inc()
		return writeInterval, nil
	case err != nil:
		r.m.statusWrites.WithLabelValues("error").Inc()
		return 0, fmt.Errorf("writing status of SidecarSet %s: %w", p.name, err)
	}
	r.m.statusWrites.WithLabelValues("written").Inc()
	log.FromContext(ctx).V(1).Info("Wrote status", "observedGeneration", next.ObservedGeneration,
		"matchedPods", next.MatchedPods, "updatedPods", next.UpdatedPods, "readyPods", next.ReadyPods)
	r.tellReadiness(p, next)
	for _, e := range events.OfRollout(events.SidecarSet{Name: p.name, UID: p.object.GetUID()}, p.before, next) {
		r.event(e)
	}
	return 0, nil
}

// tellReadiness records an Event if the status or the reason of the condition Ready has
// changed, or if the user has paused the injection, so that there is none. A reason says whether
// a user has to act: the recorder counts Events with the same reason as one, and keeps the first
// message.
func (r *SidecarSetReconciler) tellReadiness(p *pass, next appsv1beta1.SidecarSetStatus) {
	about := events.SidecarSet{Name: p.name, UID: p.object.GetUID()}
	was := meta.FindStatusCondition(p.before.Conditions, appsv1beta1.ConditionReady)
	is := meta.FindStatusCondition(next.Conditions, appsv1beta1.ConditionReady)
	switch {
	case is == nil && p.seen.InjectionPaused && (was != nil || len(p.before.Conditions) == 0):
		r.event(events.NotReady(about, appsv1beta1.ReasonPaused, status.InjectionPausedMessage))
	case is == nil || was != nil && was.Status == is.Status && was.Reason == is.Reason:
	case is.Status == metav1.ConditionTrue:
		r.event(events.Ready(about, is.Reason, is.Message))
	default:
		r.event(events.NotReady(about, is.Reason, is.Message))
	}
}

func statusOf(object *unstructured.Unstructured) (s appsv1beta1.SidecarSetStatus, err error) {
	stored, _, err := unstructured.NestedMap(object.Object, "status")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(stored, &s)
	}
	if err != nil {
		return s, fmt.Errorf("reading status of SidecarSet %s: %w", object.GetName(), err)
	}
	return s, nil
}

// writtenStatus is a SidecarSetStatus, all of whose members this controller owns. Each patch
// has the members that the schema requires, and the counters, even if they are zero. What is
// empty is null, which removes the stored one.
type writtenStatus struct {
	ObservedGeneration int64  `json:"observedGeneration"`
	MatchedPods        int32  `json:"matchedPods"`
	UpdatedPods        int32  `json:"updatedPods"`
	ReadyPods          int32  `json:"readyPods"`
	UpdatedReadyPods   int32  `json:"updatedReadyPods"`
	LatestRevision     string `json:"latestRevision,omitempty"`
	StableRevision     string `json:"stableRevision,omitempty"`
	CollisionCount     *int32 `json:"collisionCount,omitempty"`
	UninjectedPods     int32  `json:"uninjectedPods"`

	Uninjected       []appsv1beta1.SidecarSetPodGroup     `json:"uninjected"`
	BlockedPods      []appsv1beta1.SidecarSetPodGroup     `json:"blockedPods"`
	NotRunningPods   []appsv1beta1.SidecarSetPodGroup     `json:"notRunningPods"`
	RolloutStartTime *metav1.Time                         `json:"rolloutStartTime"`
	NotReadyBefore   *int32                               `json:"notReadyBefore"`
	DisappearedPods  int32                                `json:"disappearedPods"`
	DisappearedUntil *metav1.Time                         `json:"disappearedUntil"`
	Revisions        []appsv1beta1.SidecarSetRevisionPods `json:"revisions"`
	Conditions       []metav1.Condition                   `json:"conditions"`
}

// statusPatch is a merge patch of the operator's members only, so that others stay, whether or
// not this build knows them. It applies only to the object as it was read: a write of a leader
// that has lost its Lease may still be under way, and must not undo its successor's.
func statusPatch(object *unstructured.Unstructured, s appsv1beta1.SidecarSetStatus) ([]byte, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": object.GetResourceVersion()},
		"status":   writtenStatus(s),
	})
	if err != nil {
		return nil, fmt.Errorf("encoding status of SidecarSet %s: %w", object.GetName(), err)
	}
	return patch, nil
}
