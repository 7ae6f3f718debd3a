// Package recreate decides which running Pods may be evicted, so that their controllers
// create new Pods that get the current content of a SidecarSet. Package rollout decides about
// order and budget.
package recreate

import (
	"fmt"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// Mode says which Pods of a SidecarSet are to be recreated.
type Mode uint8

// The modes.
const (
	// Never: none.
	Never Mode = 0
	// Outdated: Pods that carry the SidecarSet, perhaps without sidecars that were
	// added since, and cannot be updated in place.
	Outdated Mode = 1 << 0
	// Uninjected: selected Pods that do not carry every sidecar of the SidecarSet.
	Uninjected Mode = 1 << 1
	// All: both.
	All = Outdated | Uninjected
)

// ModeOf reads the annotation of a SidecarSet. With an error, the mode is Never.
func ModeOf(annotations map[string]string) (Mode, error) {
	switch text := annotations[appsv1beta1.AnnotationRecreate]; text {
	case "", appsv1beta1.RecreateNever:
		return Never, nil
	case appsv1beta1.RecreateOutdated:
		return Outdated, nil
	case appsv1beta1.RecreateUninjected:
		return Uninjected, nil
	case appsv1beta1.RecreateAll:
		return All, nil
	default:
		return Never, fmt.Errorf("annotation %s %q is not known; write %s, %s, %s or %s", appsv1beta1.AnnotationRecreate, text,
			appsv1beta1.RecreateNever, appsv1beta1.RecreateOutdated, appsv1beta1.RecreateUninjected, appsv1beta1.RecreateAll)
	}
}

// Helps reports whether the mode Outdated is for Pods that are blocked for this reason: a new
// Pod would have the content. Judge decides about each Pod.
func Helps(reason inplace.Reason) bool {
	switch reason {
	case inplace.ImmutableFieldChanged, inplace.RevisionUnknown, inplace.NodeTooOld, inplace.ResizeRestarts,
		inplace.ResourcesHeldElsewhere, inplace.ResizeInfeasible, inplace.ResizeUnsupported:
		return true
	}
	return false
}

// Question is the input of Judge: one Pod, and one SidecarSet that selects it.
type Question struct {
	Mode Mode
	Pod  *podstate.Record
	// Injected: the Pod carries every sidecar of the SidecarSet. Way is how it can get
	// the current content.
	Injected bool
	Way      inplace.Way
	// Recorded: the Pod says that it carries the SidecarSet. It may lack sidecars that were
	// added since.
	Recorded bool
	// Since is the time at which the current content became current, in seconds; 0 if
	// it is unknown. It must not be earlier. After a rollback it is the time of the
	// rollback.
	Since int64
	// ReplacementCurrent: if the Pod were created now, it would get the current content
	// of the SidecarSet.
	ReplacementCurrent bool
}

// Reasons why a Pod that is to be recreated is not evicted.
const (
	// NoController: nothing would replace the Pod.
	NoController inplace.Reason = "NoController"
	// ControlledByJob: the Job would count the Pod as failed.
	ControlledByJob inplace.Reason = "ControlledByJob"
	// EvictionForbidden: an annotation of the Pod forbids it.
	EvictionForbidden inplace.Reason = "EvictionForbidden"
	// ReplacementNotInjected: the Pod is newer than the content and does not carry it,
	// so that its replacement would not carry it either.
	ReplacementNotInjected inplace.Reason = "ReplacementNotInjected"
	// ReplacementOutdated: the replacement would not get the current content.
	ReplacementOutdated inplace.Reason = "ReplacementOutdated"
)

// Reasons of Pods that are to be evicted.
const (
	// DisruptionBudget: a PodDisruptionBudget does not allow it now.
	DisruptionBudget inplace.Reason = "DisruptionBudget"
	// EvictionRefused: the API server does not evict the Pod.
	EvictionRefused inplace.Reason = "EvictionRefused"
)

// Judge decides whether a Pod may be evicted, and returns the reason if it may not. The
// reason is empty if the mode does not apply to the Pod.
//
// No Pod is evicted in a loop: its replacement is newer than the current content, and
// such a Pod is never evicted, whatever it carries.
func Judge(q Question) (evictable bool, reason inplace.Reason) {
	if !q.asked() {
		return false, ""
	}
	switch {
	case q.Pod.Facts.Mirror:
		return false, inplace.MirrorPod
	case q.Pod.Controller == 0:
		return false, NoController
	case q.Pod.ByJob:
		return false, ControlledByJob
	case q.Pod.RunsToCompletion:
		return false, inplace.RunToCompletion
	case q.Pod.Protected:
		return false, EvictionForbidden
	case q.Since == 0 || q.Pod.Order.Created == 0 || q.Pod.Order.Created >= q.Since:
		return false, ReplacementNotInjected
	case !q.ReplacementCurrent:
		return false, ReplacementOutdated
	}
	return true, ""
}

func (q *Question) asked() bool {
	if q.Injected {
		return q.Way == inplace.Recreate && q.Mode&Outdated != 0
	}
	return q.Mode&Uninjected != 0 || q.Mode&Outdated != 0 && q.Recorded
}
