package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

// Rollout is the state of the update of a SidecarSet's running Pods.
type Rollout struct {
	// NotUpdate and Paused are the strategy's settings. NoneAllowed is true if
	// maxUnavailable allows no Pod to be unavailable.
	NotUpdate, Paused, NoneAllowed bool
	// Waiting is the number of Pods that may be updated as soon as the budget allows it.
	Waiting int32
	// Writing is the number of Pods that are being written, or wait for the kubelet to
	// act on a change by another operator.
	Writing int32
	// InFlight is the number of Pods that are in flight, or are being written while
	// they are available.
	InFlight int32
	// Settling Pods are among those of InFlight. Only time is missing until they count as
	// updated and available.
	Settling int32
	// Unrepaired Pods are among those of InFlight. They are outdated, and partition or
	// selector exclude them from an update that might repair them.
	Unrepaired int32
	// Keep is the number of matched Pods that the strategy's partition excludes.
	Keep int32
	// Unselected is the number of Pods that the strategy's selector excludes.
	Unselected int32
	// Uninjected is the number of Pods that do not carry the SidecarSet and are to be
	// evicted.
	Uninjected int32
	// Stuck is the number of replacements that are not ready in time, if they use up
	// the budget; otherwise 0.
	Stuck int32
	// FirstBatch is true while the other Pods wait for those of the first batch.
	FirstBatch bool
	// Failing are the Pods of InFlight with a container that does not start, by the
	// kubelet's reason.
	Failing []appsv1beta1.SidecarSetPodGroup
	// Problem is an error in the strategy, because of which no Pod is updated.
	Problem error
	// Stopped is the message that says why no Pod is evicted until a replacement becomes ready
	// or a user acts; empty if Pods may be evicted.
	Stopped string
	// Moved is the time at which the rollout last made progress: see Progress.
	Moved time.Time
}

// RolloutOf converts the report of a queue.
func RolloutOf(r rollout.Report, failing []appsv1beta1.SidecarSetPodGroup, recreation tally.Recreation) *Rollout {
	seen := &Rollout{
		NotUpdate:   r.Limit == rollout.NotUpdate,
		Paused:      r.Limit == rollout.Paused,
		NoneAllowed: r.Limit == rollout.Budget && r.Allowed == 0,
		Waiting:     int32(r.Waiting-r.Kept) + protected(r),
		Writing:     int32(r.Taken + r.InTransition),
		InFlight:    int32(r.Used - recreation.Failed),
		Settling:    int32(r.Settling),
		Unrepaired:  int32(r.Unrepaired),
		Keep:        int32(r.Partition),
		Unselected:  int32(r.Unselected),
		Uninjected:  int32(recreation.Uninjected),
		FirstBatch:  r.Limit == rollout.FirstBatch,
		Failing:     failing,
		Problem:     r.Problem,
	}
	if recreation.Stopped {
		seen.Stopped = recreationStopped
	}
	if r.Limit == rollout.Budget && r.Used <= recreation.Failed {
		seen.Stuck = int32(recreation.Failed)
	}
	return seen
}

const recreationStopped = "Three replacements of evicted Pods in a row did not become ready. No further Pod is evicted until one of them does, " +
	"or the SidecarSet's content or its annotation " + appsv1beta1.AnnotationRecreate + " changes."

// protected is the number of Pods that wait for a PodDisruptionBudget.
func protected(r rollout.Report) (pods int32) {
	for _, group := range r.Blocked {
		if group.Reason == string(recreate.DisruptionBudget) {
			pods += group.Pods
		}
	}
	return pods
}

// BlockedBy returns the blocked Pods for the status; nil with NotUpdate. Evicted Pods
// are not among them, because they are about to end.
func BlockedBy(r rollout.Report) []appsv1beta1.SidecarSetPodGroup {
	if r.Limit == rollout.NotUpdate {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(r.Blocked), func(group appsv1beta1.SidecarSetPodGroup) bool {
		return group.Reason == string(recreate.Evicted)
	})
}

const (
	// stalledAfter is the time without progress after which a rollout is stalled. It is
	// the default of Deployments.
	stalledAfter = 10 * time.Minute
	// failedAfter takes the place of stalledAfter if the kubelet reports, of every Pod in
	// flight, that a container does not start.
	failedAfter = time.Minute
)

// StallsIn returns the time after which the rollout is stalled if it makes no progress;
// false if it is stalled already, or cannot become so.
func (r *Rollout) StallsIn(now time.Time) (time.Duration, bool) {
	for _, after := range []time.Duration{failedAfter, stalledAfter} {
		at := r.Moved.Add(after)
		if !r.stalled(now) && r.stalled(at) {
			return at.Sub(now), true
		}
	}
	return 0, false
}

// stalled reports whether no Pod in flight has become ready for too long.
func (r *Rollout) stalled(now time.Time) bool {
	if r.Stuck > 0 {
		return true
	}
	late := r.InFlight - r.Settling
	if late <= 0 && (r.Settling > 0 || !r.FirstBatch) || r.Moved.IsZero() {
		return false
	}
	quiet := now.Sub(r.Moved)
	return quiet >= stalledAfter || quiet >= failedAfter && late > 0 && sum(r.Failing) >= late
}

// progressing returns the condition Progressing, without its time.
func progressing(o Observation) metav1.Condition {
	c := metav1.Condition{Type: appsv1beta1.ConditionProgressing, Status: metav1.ConditionFalse}
	r, n := o.Rollout, o.Counters
	outdated := n.Matched - n.Updated + r.Uninjected
	blocked := sum(o.Blocked)
	switch {
	case o.Problem != nil:
		c.Reason, c.Message = appsv1beta1.ReasonInvalid, "Running Pods are not updated until the SidecarSet is corrected."
	case r.NotUpdate:
		c.Reason, c.Message = appsv1beta1.ReasonNotUpdate, "updateStrategy.type is NotUpdate: running Pods keep the sidecars that they have."
	case r.Problem != nil:
		c.Reason, c.Message = appsv1beta1.ReasonInvalid, "No running Pod is updated: "+r.Problem.Error()
	case r.stalled(o.Now):
		c.Reason, c.Message = appsv1beta1.ReasonStalled, stalledMessage(r)
	case outdated == 0 && r.InFlight == 0 && r.Stopped == "":
		c.Reason, c.Message = appsv1beta1.ReasonComplete, fmt.Sprintf("All %d matched Pods are updated.", n.Matched)
	case r.Paused, r.NoneAllowed:
		c.Reason, c.Message = appsv1beta1.ReasonPaused, pausedBy(r)+": "+toGo(outdated, r.InFlight)
	case r.InFlight > 0 || r.Writing > 0 || r.Waiting > 0 && r.Stopped == "":
		c.Status, c.Reason = metav1.ConditionTrue, appsv1beta1.ReasonRollingOut
		c.Message = fmt.Sprintf("%d of %d matched Pods are updated. ", n.Updated, n.Matched) + toGo(outdated, r.InFlight)
	case r.Stopped != "":
		c.Reason, c.Message = appsv1beta1.ReasonStalled, r.Stopped
	case blocked > 0 && outdated > r.Keep+r.Unselected:
		c.Reason, c.Message = appsv1beta1.ReasonBlocked, fmt.Sprintf("%d of the %d Pods that are not updated cannot be updated in place: %s.", blocked, outdated, reasons(o.Blocked))
	default:
		c.Reason = appsv1beta1.ReasonPartitionReached
		c.Message = fmt.Sprintf("%d of %d matched Pods are updated. updateStrategy.partition or updateStrategy.selector excludes the others.", n.Updated, n.Matched)
	}
	c.Message = brief(c.Message)
	return c
}

// pausedBy says which field of the update strategy stops the rollout.
func pausedBy(r *Rollout) string {
	if r.NoneAllowed {
		return "updateStrategy.maxUnavailable allows no Pod to be unavailable"
	}
	return "updateStrategy.paused is true"
}

func toGo(outdated, inFlight int32) string {
	return fmt.Sprintf("%d Pods are still to be updated. %d Pods are being updated or replaced and are not ready yet.", outdated, inFlight)
}

// degraded returns the condition Degraded, without its time.
func degraded(o Observation) metav1.Condition {
	c := metav1.Condition{Type: appsv1beta1.ConditionDegraded, Status: metav1.ConditionTrue}
	r := o.Rollout
	outdated := o.Counters.Matched - o.Counters.Updated + r.Uninjected
	switch {
	case o.Problem != nil:
		c.Reason, c.Message = appsv1beta1.ReasonInvalid, "The SidecarSet cannot be used: see the condition Accepted."
	case o.Unrecorded != nil && r.Stopped == "": // a stop stays in this condition: a new leader reads it
		c.Reason, c.Message = appsv1beta1.ReasonRevisionNotRecorded, unrecordedMessage(o)
	case r.NotUpdate:
		c.Status = metav1.ConditionFalse
	case r.Problem != nil:
		c.Reason, c.Message = appsv1beta1.ReasonInvalid, "No running Pod is updated: "+r.Problem.Error()
	case r.Stopped != "":
		c.Reason, c.Message = appsv1beta1.ReasonRecreationStopped, r.Stopped
	case r.stalled(o.Now) && r.FirstBatch:
		c.Reason, c.Message = appsv1beta1.ReasonFirstBatch, stalledMessage(r)+" The other Pods wait for the first batch."
	case r.stalled(o.Now):
		c.Reason, c.Message = appsv1beta1.ReasonStalled, stalledMessage(r)
	case needsUser(o.Blocked) && outdated > r.Keep+r.Unselected:
		c.Reason, c.Message = appsv1beta1.ReasonBlocked, fmt.Sprintf("%d Pods cannot be updated: %s. status.blockedPods names the first ones.", sum(o.Blocked), reasons(o.Blocked))
	default:
		c.Status = metav1.ConditionFalse
	}
	if c.Status == metav1.ConditionFalse {
		c.Reason, c.Message = appsv1beta1.ReasonAsExpected, "No action is needed."
	}
	c.Message = brief(c.Message)
	return c
}

func unrecordedMessage(o Observation) string {
	return brief(fmt.Sprintf("No ControllerRevision records generation %d yet, so running Pods are not updated to it: %v", o.Generation, o.Unrecorded))
}

// needsUser reports whether there is a reason that needs a user.
func needsUser(blocked []appsv1beta1.SidecarSetPodGroup) bool {
	for i := range blocked {
		switch inplace.Reason(blocked[i].Reason) {
		case inplace.RunToCompletion, recreate.ControlledByJob: // the Pod ends
		case inplace.NodeNotReady: // the node comes back, or the Pod goes
		case inplace.WriteFailed: // is tried again
		case inplace.ResizeDeferred: // the kubelet tries again
		case inplace.MirrorPod: // the kubelet updates it with its static Pod
		case recreate.DisruptionBudget: // the PodDisruptionBudget allows it later
		case recreate.NotInjected: // in flight; or recreation has stopped, which has a reason of its own
		default:
			return true
		}
	}
	return false
}

// stalledMessage names the Pods that did not become ready, and the kubelet's reasons.
// It contains no duration, so that it does not change with time.
func stalledMessage(r *Rollout) string {
	if r.Stuck > 0 {
		return fmt.Sprintf("The replacements of %d evicted Pods do not become ready, and updateStrategy.maxUnavailable allows no further eviction.", r.Stuck)
	}
	if r.InFlight == 0 {
		return "The Pods of the first batch are updated and not ready."
	}
	message := fmt.Sprintf("%d Pods did not become ready after the update", r.InFlight-r.Settling)
	separator := ": "
	for _, group := range r.Failing {
		message += fmt.Sprintf("%s%d %s%s", separator, group.Pods, group.Reason, example(group))
		separator = "; "
	}
	if r.Unrepaired > 0 {
		return message + fmt.Sprintf(". The update strategy excludes %d of them from a further update.", r.Unrepaired)
	}
	return message + "."
}

func reasons(groups []appsv1beta1.SidecarSetPodGroup) string {
	said := make([]string, len(groups))
	for i, group := range groups {
		said[i] = fmt.Sprintf("%d %s", group.Pods, group.Reason)
	}
	return strings.Join(said, ", ")
}

func example(group appsv1beta1.SidecarSetPodGroup) string {
	if len(group.First) == 0 {
		return ""
	}
	return " (" + shortened(group.First[0], maxName) + ")"
}

func sum(groups []appsv1beta1.SidecarSetPodGroup) (pods int32) {
	for i := range groups {
		pods += groups[i].Pods
	}
	return pods
}

// maxBrief bounds the messages of the conditions that are about Pods.
const maxBrief = 320

func brief(message string) string { return cut(message, maxBrief) }
