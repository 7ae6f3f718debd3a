package controllers

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/status"
)

// writeStatus patches the status if it says something else than what was seen.
func (r *SidecarSetReconciler) writeStatus(ctx context.Context, object *unstructured.Unstructured, seen status.Observation) (ctrl.Result, error) {
	previous, err := statusOf(object)
	if err != nil {
		return ctrl.Result{}, err
	}
	next := status.Next(previous, seen)
	if seen.Readiness != nil && seen.Readiness.Ready {
		r.pace.saysReady(object.GetName(), object.GetUID(), seen.Generation)
	}
	if status.Equal(previous, next) {
		return ctrl.Result{}, nil
	}
	patch, err := statusPatch(object, next)
	if err != nil {
		return ctrl.Result{}, err
	}
	name := object.GetName()
	r.pace.wrote(name, object.GetUID(), r.clock.Now())
	switch err := r.status.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch)); {
	case apierrors.IsNotFound(err):
		return ctrl.Result{}, nil
	case apierrors.IsConflict(err):
		// The cache is behind. It may also catch up without an event that is
		// left to come, so look again.
		r.m.statusWrites.WithLabelValues("conflict").Inc()
		return ctrl.Result{RequeueAfter: writeInterval}, nil
	case err != nil:
		r.m.statusWrites.WithLabelValues("error").Inc()
		return ctrl.Result{}, fmt.Errorf("writing status of SidecarSet %s: %w", name, err)
	}
	r.m.statusWrites.WithLabelValues("written").Inc()
	log.FromContext(ctx).V(1).Info("Wrote status", "observedGeneration", next.ObservedGeneration,
		"matchedPods", next.MatchedPods, "updatedPods", next.UpdatedPods, "readyPods", next.ReadyPods)
	return ctrl.Result{}, nil
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

// ownedStatus has the members of a status that this controller writes. All are
// in each patch, zero or not: the schema requires some of them.
type ownedStatus struct {
	ObservedGeneration int64              `json:"observedGeneration"`
	MatchedPods        int32              `json:"matchedPods"`
	UpdatedPods        int32              `json:"updatedPods"`
	ReadyPods          int32              `json:"readyPods"`
	UpdatedReadyPods   int32              `json:"updatedReadyPods"`
	UninjectedPods     int32              `json:"uninjectedPods"`
	Conditions         []metav1.Condition `json:"conditions"`
	LatestRevision     string             `json:"latestRevision,omitempty"`
	CollisionCount     *int32             `json:"collisionCount,omitempty"`
}

// statusPatch is a merge patch of our members only, so that others stay, known
// to this build or not. It applies to the object as it was read: a leader that
// lost its lease may have a write under way, and must not undo its successor's.
func statusPatch(object *unstructured.Unstructured, s appsv1beta1.SidecarSetStatus) ([]byte, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": object.GetResourceVersion()},
		"status": ownedStatus{
			ObservedGeneration: s.ObservedGeneration,
			MatchedPods:        s.MatchedPods,
			UpdatedPods:        s.UpdatedPods,
			ReadyPods:          s.ReadyPods,
			UpdatedReadyPods:   s.UpdatedReadyPods,
			UninjectedPods:     s.UninjectedPods,
			Conditions:         s.Conditions,
			LatestRevision:     s.LatestRevision,
			CollisionCount:     s.CollisionCount,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("encoding status of SidecarSet %s: %w", object.GetName(), err)
	}
	return patch, nil
}
