package events

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
)

// The actions of Events about running Pods.
const (
	ActionRollOut   = "RollOut"
	ActionSkipPods  = "SkipPods"
	ActionUpdatePod = "UpdatePod"
)

// OfRollout returns the Events that follow from one status of a SidecarSet after another: a
// rollout started, ended, reached its partition or stalled, updated Pods broke, sidecars do not run,
// more Pods cannot follow, or the API server refused to update more Pods. It returns none if nothing
// of that changed.
func OfRollout(about SidecarSet, before, after appsv1beta1.SidecarSetStatus) []Event {
	var told []Event
	if e := progress(about, before, after); e.Reason != "" {
		told = append(told, e)
	}
	if was, is := blocked(before), blocked(after); is > was {
		told = append(told, Event{about, Pod{}, corev1.EventTypeNormal, appsv1beta1.ReasonNotUpgradable, ActionSkipPods,
			// The text is that of OpenKruise.
			fmt.Sprintf("SidecarSet in-place update detected %d not upgradable pod(s) in this round, will skip them.", is)})
	}
	if was, is := group(before, inplace.WriteRejected), group(after, inplace.WriteRejected); is.Pods > was.Pods {
		told = append(told, Event{about, Pod{}, corev1.EventTypeWarning, appsv1beta1.ReasonPodUpdateRejected, ActionUpdatePod, bounded(refusal(is))})
	}
	return told
}

// troubles are the reasons of Degraded that have an Event.
var troubles = map[string]bool{
	appsv1beta1.ReasonStalled: true, appsv1beta1.ReasonPodsNotReady: true, appsv1beta1.ReasonSidecarsNotRunning: true,
}

// progress returns the Event about the progress of a rollout; the zero Event if there
// is none.
func progress(about SidecarSet, before, after appsv1beta1.SidecarSetStatus) Event {
	condition, kind := appsv1beta1.ConditionDegraded, corev1.EventTypeWarning
	degraded := reason(after, condition)
	news := degraded != reason(before, condition) && troubles[degraded]
	if !news {
		condition, kind = appsv1beta1.ConditionProgressing, corev1.EventTypeNormal
		was, is := reason(before, condition), reason(after, condition)
		// A rollout that takes less than a second may never have the reason RollingOut.
		another := before.LatestRevision != "" && before.LatestRevision != after.LatestRevision && after.MatchedPods > 0
		switch is {
		case appsv1beta1.ReasonRollingOut:
			news = was != is || another
		case appsv1beta1.ReasonComplete:
			news = underWay[was] || another
		case appsv1beta1.ReasonPartitionReached, appsv1beta1.ReasonBlocked:
			news = was != is && (underWay[was] || another)
		}
	}
	if !news {
		return Event{}
	}
	c := meta.FindStatusCondition(after.Conditions, condition)
	return Event{about, Pod{}, kind, c.Reason, ActionRollOut, bounded(c.Message)}
}

// underWay has the reasons of Progressing from which a rollout can become complete.
var underWay = map[string]bool{
	appsv1beta1.ReasonRollingOut: true, appsv1beta1.ReasonStalled: true, appsv1beta1.ReasonPaused: true,
	appsv1beta1.ReasonPartitionReached: true, appsv1beta1.ReasonBlocked: true,
}

func reason(s appsv1beta1.SidecarSetStatus, condition string) string {
	if c := meta.FindStatusCondition(s.Conditions, condition); c != nil {
		return c.Reason
	}
	return ""
}

func blocked(s appsv1beta1.SidecarSetStatus) (pods int32) {
	for i := range s.BlockedPods {
		pods += s.BlockedPods[i].Pods
	}
	return pods
}

// group returns the Pods that are blocked for a reason.
func group(s appsv1beta1.SidecarSetStatus, reason inplace.Reason) appsv1beta1.SidecarSetPodGroup {
	for i := range s.BlockedPods {
		if s.BlockedPods[i].Reason == string(reason) {
			return s.BlockedPods[i]
		}
	}
	return appsv1beta1.SidecarSetPodGroup{}
}

func refusal(group appsv1beta1.SidecarSetPodGroup) string {
	note := fmt.Sprintf("The API server refused to update %d Pods", group.Pods)
	if len(group.First) > 0 {
		note += ", the first is " + group.First[0]
	}
	if group.Message != "" {
		note += ": " + group.Message
	}
	return note
}
