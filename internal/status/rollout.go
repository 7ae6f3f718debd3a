package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
)

// A rollout is stalled if it has made no progress for stalledAfter, which is the default of
// Deployments, and the slack of its Pods. It is stalled after failedAfter if no Pod that counts
// can be expected to come back by waiting.
const (
	stalledAfter = 10 * time.Minute
	failedAfter  = time.Minute
)

// off says what keeps the operator from taking any Pod, as the author wants it; "" if nothing does.
func off(r *rollout.Report) string {
	switch {
	case r.Limit == rollout.NotUpdate:
		return "updateStrategy.type is NotUpdate"
	case r.Limit == rollout.Paused:
		return "updateStrategy.paused is true"
	case r.Limit == rollout.Budget && r.Allowed == 0:
		return "updateStrategy.maxUnavailable allows no Pod to be unavailable"
	}
	return ""
}

// movable is the number of Pods that can be taken, now or later.
func movable(r *rollout.Report) int {
	n := r.Waiting - r.Kept
	for i := range r.Blocked {
		if r.Blocked[i].Reason == string(recreate.DisruptionBudget) {
			n += int(r.Blocked[i].Pods)
		}
	}
	return n
}

// held reports whether the rollout waits for Pods that it updated or evicted. It is not held by an
// app that is down for reasons of its own, which keeps only its own Pods from being updated.
func held(r *rollout.Report) bool {
	return r.Used > 0 || off(r) == "" && (r.EvictionsWait != "" || movable(r) > 0 && r.Limit == rollout.Proof)
}

// stallsAt is when the rollout is stalled if it makes no progress until then; zero if it cannot
// be. A leader that takes no Pods repairs none either, so it waits less long for them.
func (o Observation) stallsAt() time.Time {
	r := o.Rollout
	if r == nil || !held(r) || r.Moved.IsZero() {
		return time.Time{}
	}
	at, failing := r.Moved.Add(stalledAfter+r.Slack), r.FailingSince
	if off(r) != "" {
		at = r.Moved.Add(failedAfter + r.Slack)
	} else if failing.Before(r.Moved) {
		failing = r.Moved
	}
	if soon := failing.Add(failedAfter); r.Failing && soon.Before(at) {
		return soon
	}
	return at
}

// StallsIn returns the time after which the rollout is stalled if it makes no progress;
// false if it is stalled already, or cannot become so.
func (o Observation) StallsIn() (time.Duration, bool) {
	at := o.stallsAt()
	return at.Sub(o.Now), at.After(o.Now)
}

// stalled reports whether the rollout has made no progress for too long. If the last leader said
// so of this generation, it is so until this leader sees progress.
func (o Observation) stalled(before []metav1.Condition) bool {
	at := o.stallsAt()
	if at.IsZero() || !o.Now.Before(at) {
		return !at.IsZero()
	}
	c := meta.FindStatusCondition(before, appsv1beta1.ConditionProgressing)
	return o.Rollout.Begun && c != nil && c.Reason == appsv1beta1.ReasonStalled && c.ObservedGeneration == o.Generation
}

// verdict has the reasons and messages of the two conditions about running Pods.
type verdict struct {
	progressing, says string
	degraded, because string // "" if it is False
}

func both(reason, message string) verdict { return verdict{reason, message, reason, message} }

func (v verdict) conditions() (progressing, degraded metav1.Condition) {
	progressing = metav1.Condition{Type: appsv1beta1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: v.progressing, Message: cut(v.says, maxBrief)}
	if v.progressing == appsv1beta1.ReasonRollingOut {
		progressing.Status = metav1.ConditionTrue
	}
	degraded = metav1.Condition{Type: appsv1beta1.ConditionDegraded, Status: metav1.ConditionTrue, Reason: v.degraded, Message: cut(v.because, maxBrief)}
	if v.degraded == "" {
		degraded.Status, degraded.Reason, degraded.Message = metav1.ConditionFalse, appsv1beta1.ReasonAsExpected, "No action is needed."
	}
	return progressing, degraded
}

// maxBrief bounds the messages of the conditions about running Pods, in bytes.
const maxBrief = 720

// judge returns what the conditions about running Pods say. before are the stored conditions.
func judge(before []metav1.Condition, o Observation) verdict {
	r := o.Rollout
	if o.Problem != nil {
		return both(appsv1beta1.ReasonInvalid, "No running Pod is updated until the SidecarSet is corrected: see the condition Accepted.")
	}
	stalled := o.stalled(before)
	v := phase(o, stalled)
	blocked := Blocked(r)
	switch {
	case o.Unrecorded != nil:
		v.degraded, v.because = appsv1beta1.ReasonRevisionNotRecorded, unrecordedMessage(o)
	case v.degraded != "": // the strategy cannot be read
	case stalled && off(r) == "" && (movable(r) > 0 || r.Used == 0): // other Pods wait
		v.degraded, v.because = appsv1beta1.ReasonStalled, stalledMessage(r)
	case stalled:
		v.degraded, v.because = appsv1beta1.ReasonPodsNotReady, stalledMessage(r)
	case slices.ContainsFunc(blocked, needsUser) && wanted(o):
		v.degraded = appsv1beta1.ReasonBlocked
		v.because = fmt.Sprintf("%d Pods cannot be updated: %s. status.blockedPods names the first ones.", sum(blocked), reasons(blocked))
	}
	return v
}

// phase returns what Progressing says.
func phase(o Observation, stalled bool) (v verdict) {
	r, n := o.Rollout, o.Counters
	blocked, toGo := sum(Blocked(r)), outdated(o)
	switch {
	case r.Problem != nil:
		return both(appsv1beta1.ReasonInvalid, "No running Pod is updated: "+r.Problem.Error())
	case r.Limit == rollout.NotUpdate:
		v.progressing, v.says = appsv1beta1.ReasonNotUpdate, off(r)+": running Pods keep the sidecars that they have."
	case toGo+blocked+n.Uninjected == 0 && r.Used+r.Taken+r.Replaced == 0:
		v.progressing, v.says = appsv1beta1.ReasonComplete, fmt.Sprintf("All %d matched Pods are updated.", n.Matched)
	case off(r) != "" && toGo+int32(r.Used+r.Taken) > 0:
		v.progressing, v.says = appsv1beta1.ReasonPaused, off(r)+": "+left(o)
	case stalled:
		v.progressing, v.says = appsv1beta1.ReasonStalled, stalledMessage(r)
	case r.Used+r.Taken+r.Replaced+movable(r) > 0 || r.EvictionsWait != "":
		v.progressing, v.says = appsv1beta1.ReasonRollingOut, left(o)+why(r)
	case blocked > 0 && wanted(o):
		v.progressing = appsv1beta1.ReasonBlocked
		v.says = fmt.Sprintf("%d of %d matched Pods are updated. %d Pods cannot be updated: %s.", n.Updated, n.Matched, blocked, reasons(Blocked(r)))
	case toGo > 0:
		v.progressing = appsv1beta1.ReasonPartitionReached
		v.says = fmt.Sprintf("%d of %d matched Pods are updated. updateStrategy.partition or updateStrategy.selector excludes the others.", n.Updated, n.Matched)
	default:
		v.progressing = appsv1beta1.ReasonBlocked
		v.says = fmt.Sprintf("All %d matched Pods are updated. %d selected Pods were not injected: only new Pods can have the sidecars. status.uninjected has the reasons.", n.Matched, n.Uninjected)
	}
	return v
}

// outdated is the number of Pods that do not carry the content.
func outdated(o Observation) int32 {
	return max(int32(o.Rollout.Outdated), o.Counters.Matched-o.Counters.Updated)
}

// wanted reports whether partition and selector let go more Pods than those that are updated, so
// that blocked Pods are missed.
func wanted(o Observation) bool {
	toGo := outdated(o)
	return toGo == 0 || toGo > int32(o.Rollout.Partition+o.Rollout.Unselected)
}

func left(o Observation) string {
	said := fmt.Sprintf("%d of %d matched Pods are updated. %d Pods are still to be updated.", o.Counters.Updated, o.Counters.Matched, outdated(o))
	if o.Rollout.Used > 0 {
		said += fmt.Sprintf(" %d Pods are being updated or replaced, or are not Ready since.", o.Rollout.Used)
	}
	return said
}

// why says what the next Pods wait for, unless that is the budget.
func why(r *rollout.Report) string {
	switch {
	case r.EvictionsWait != "":
		return " No Pod is evicted now: " + r.EvictionsWait
	case r.Limit == rollout.Proof:
		return " The next Pods wait until the updated ones were Ready for " + appsv1beta1.AnnotationMinReadySeconds + "."
	case r.Limit == rollout.Share:
		return " The next Pods wait because too many Pods of their controllers are not Ready."
	case r.Limit == rollout.Refusals:
		return " The API server refused the last Pods, so one Pod at a time is tried."
	}
	return ""
}

func unrecordedMessage(o Observation) string {
	return fmt.Sprintf("No ControllerRevision records generation %d yet, so running Pods are not updated to it: %v", o.Generation, o.Unrecorded)
}

// needsUser reports whether Pods stay blocked until a user does something.
func needsUser(group appsv1beta1.SidecarSetPodGroup) bool {
	switch inplace.Reason(group.Reason) {
	case inplace.RunToCompletion, recreate.ControlledByJob, // the Pod ends
		inplace.NodeNotReady,      // the node comes back, or the Pod goes
		inplace.WriteFailed,       // is tried again
		inplace.ResizeDeferred,    // the kubelet tries again
		inplace.MirrorPod,         // the kubelet updates it with its static Pod
		recreate.DisruptionBudget: // the PodDisruptionBudget allows it later
		return false
	}
	return true
}

// stalledMessage names the Pods that the rollout waits for, and says what each of them waits for.
// It contains no duration, so that it does not change with time.
func stalledMessage(r *rollout.Report) string {
	if r.Used == 0 {
		message := "No further Pod is updated." + why(r)
		if len(r.FirstUnproven) > 0 {
			message += " The first of these is " + shortened(r.FirstUnproven[0], maxExample) + "."
		}
		return message
	}
	groups := slices.Clone(r.Counting)
	slices.SortStableFunc(groups, func(a, b appsv1beta1.SidecarSetPodGroup) int { return int(b.Pods - a.Pods) })
	message, separator := fmt.Sprintf("%d updated or replaced Pods are not Ready", r.Used), ": "
	for _, group := range groups[:min(maxNames, len(groups))] {
		message += fmt.Sprintf("%s%d %s", separator, group.Pods, cut(group.Reason, maxReason))
		if len(group.First) > 0 {
			message += " (" + shortened(group.First[0], maxExample) + ")"
		}
		separator = "; "
	}
	message += "."
	waits := func(reason string) bool {
		return slices.ContainsFunc(groups, func(group appsv1beta1.SidecarSetPodGroup) bool { return group.Reason == reason })
	}
	if waits(appsv1beta1.ReasonStartupProbe) || waits(appsv1beta1.ReasonTerminating) {
		message += " Until a startup probe or a termination has ended, the kubelet acts on no further change."
	}
	if waits(appsv1beta1.ReasonReplacementNotReady) {
		message += " The places of deleted and evicted Pods are kept while their controllers' new Pods are not Ready."
	}
	if r.Limit == rollout.Paused {
		message += " They are not repaired, because " + off(r) + "."
	}
	return message
}

// The reasons come from the kubelet, and the names from the Pods.
const maxReason, maxExample = 40, 100

func reasons(groups []appsv1beta1.SidecarSetPodGroup) string {
	said := make([]string, len(groups))
	for i, group := range groups {
		said[i] = fmt.Sprintf("%d %s", group.Pods, group.Reason)
	}
	return strings.Join(said, ", ")
}

func sum(groups []appsv1beta1.SidecarSetPodGroup) (pods int32) {
	for i := range groups {
		pods += groups[i].Pods
	}
	return pods
}
