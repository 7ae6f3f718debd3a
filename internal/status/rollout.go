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

// Rollout is what is known of the Pods that a SidecarSet's update strategy moves.
type Rollout struct {
	// NotUpdate and Paused are what the strategy says. Paused is also true if
	// maxUnavailable allows no Pod to be unavailable.
	NotUpdate, Paused bool
	// Waiting Pods may be updated as soon as the budget allows it.
	Waiting int32
	// Writing Pods are being written, or wait for the kubelet to act on a change that
	// another operator made.
	Writing int32
	// InFlight Pods were disturbed by the operator while they were available, and are
	// not back, or are being written.
	InFlight int32
	// Keep is how many matched Pods the strategy's partition keeps as they are.
	Keep int32
	// Unselected Pods are not updated since the strategy's selector leaves them out.
	Unselected int32
	// Uninjected Pods do not carry the SidecarSet, and are to be evicted.
	Uninjected int32
	// Stuck replacements of evicted Pods are not ready in time, and take all places of the
	// budget; 0 if others can move.
	Stuck int32
	// FirstBatch is true while the other Pods wait for those of the first batch.
	FirstBatch bool
	// Failing are Pods in flight whose containers do not start, by the reason that the
	// kubelet gives. They are among those in InFlight.
	Failing []appsv1beta1.SidecarSetPodGroup
	// Problem says what cannot be understood of the strategy, so that no Pod is
	// updated.
	Problem error
	// Stopped says why no further Pod is updated until a user does something; empty if
	// that is not so.
	Stopped string
	// Moved is when the rollout last made progress: see Progress.
	Moved time.Time
}

// RolloutOf makes of what a queue reports what a status says.
func RolloutOf(r rollout.Report, failing []appsv1beta1.SidecarSetPodGroup, recreation tally.Recreation) *Rollout {
	stopped := ""
	if recreation.Stopped {
		stopped = recreationStopped
	}
	stuck := 0
	if r.Limit == rollout.Budget && r.Used <= recreation.Failed {
		stuck = recreation.Failed
	}
	return &Rollout{
		Stuck:      int32(stuck),
		Stopped:    stopped,
		NotUpdate:  r.Limit == rollout.NotUpdate,
		Paused:     r.Limit == rollout.Paused || r.Limit == rollout.Budget && r.Allowed == 0,
		Waiting:    int32(r.Waiting-r.Kept) + protected(r),
		Writing:    int32(r.Taken + r.InTransition),
		InFlight:   int32(r.Used - recreation.Failed),
		Keep:       int32(r.Partition),
		Unselected: int32(r.Unselected),
		Uninjected: int32(recreation.Uninjected),
		FirstBatch: r.Limit == rollout.FirstBatch,
		Failing:    failing,
		Problem:    r.Problem,
	}
}

const recreationStopped = "Three replacements of evicted Pods in a row did not become ready. No further Pod is evicted until one of them does, " +
	"or the SidecarSet's content or its annotation " + appsv1beta1.AnnotationRecreate + " changes."

// protected is how many Pods wait for a PodDisruptionBudget.
func protected(r rollout.Report) (pods int32) {
	for _, group := range r.Blocked {
		if group.Reason == string(recreate.DisruptionBudget) {
			pods += group.Pods
		}
	}
	return pods
}

// BlockedBy returns what a status says of Pods that cannot follow: nothing, if they
// do not have to. An evicted Pod is not among them: the watch is about to say that it
// is gone.
func BlockedBy(r rollout.Report) []appsv1beta1.SidecarSetPodGroup {
	if r.Limit == rollout.NotUpdate {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(r.Blocked), func(group appsv1beta1.SidecarSetPodGroup) bool {
		return group.Reason == string(recreate.Evicted)
	})
}

const (
	// stalledAfter is how long a rollout may stay as it is before it counts as
	// stalled. It is that of Deployments.
	stalledAfter = 10 * time.Minute
	// failedAfter is that time if the kubelet reports of every Pod in flight that a
	// container does not start.
	failedAfter = time.Minute
)

// StallsIn returns after which time the rollout counts as stalled if nothing moves;
// false if it does already, or if time does not matter.
func (r *Rollout) StallsIn(now time.Time) (time.Duration, bool) {
	for _, after := range []time.Duration{failedAfter, stalledAfter} {
		at := r.Moved.Add(after)
		if !r.stalled(now) && r.stalled(at) {
			return at.Sub(now), true
		}
	}
	return 0, false
}

// stalled reports whether Pods in flight have not come back for too long.
func (r *Rollout) stalled(now time.Time) bool {
	if r.Stuck > 0 {
		return true
	}
	if r.InFlight == 0 && !r.FirstBatch || r.Moved.IsZero() {
		return false
	}
	quiet := now.Sub(r.Moved)
	return quiet >= stalledAfter || quiet >= failedAfter && r.InFlight > 0 && sum(r.Failing) >= r.InFlight
}

// progressing returns the condition Progressing, without its time.
func progressing(o Observation) metav1.Condition {
	c := metav1.Condition{Type: appsv1beta1.ConditionProgressing, Status: metav1.ConditionFalse}
	r, n := o.Rollout, o.Counters
	outdated := n.Matched - n.Updated + r.Uninjected
	blocked := sum(o.Blocked)
	switch {
	case o.Problem != nil:
		c.Reason, c.Message = appsv1beta1.ReasonInvalid, "Running Pods stay as they are until the SidecarSet is corrected."
	case r.NotUpdate:
		c.Reason, c.Message = appsv1beta1.ReasonNotUpdate, "updateStrategy.type is NotUpdate: running Pods keep the sidecars that they have."
	case r.Problem != nil:
		c.Reason, c.Message = appsv1beta1.ReasonInvalid, "No running Pod is updated: "+r.Problem.Error()
	case r.stalled(o.Now):
		c.Reason, c.Message = appsv1beta1.ReasonStalled, stalledMessage(r)
	case outdated == 0 && r.InFlight == 0 && r.Stopped == "":
		c.Reason, c.Message = appsv1beta1.ReasonComplete, fmt.Sprintf("All %d matched Pods are updated.", n.Matched)
	case r.Paused:
		c.Reason, c.Message = appsv1beta1.ReasonPaused, "updateStrategy.paused is true, or maxUnavailable is 0: "+toGo(outdated, r.InFlight)
	case r.InFlight > 0 || r.Writing > 0 || r.Waiting > 0 && r.Stopped == "":
		c.Status, c.Reason = metav1.ConditionTrue, appsv1beta1.ReasonRollingOut
		c.Message = fmt.Sprintf("%d of %d matched Pods are updated; ", n.Updated, n.Matched) + toGo(outdated, r.InFlight)
	case r.Stopped != "":
		c.Reason, c.Message = appsv1beta1.ReasonStalled, r.Stopped
	case blocked > 0 && outdated > r.Keep+r.Unselected:
		c.Reason, c.Message = appsv1beta1.ReasonBlocked, fmt.Sprintf("%d of the %d Pods that are not updated cannot follow: %s.", blocked, outdated, reasons(o.Blocked))
	default:
		c.Reason = appsv1beta1.ReasonPartitionReached
		c.Message = fmt.Sprintf("%d of %d matched Pods are updated; updateStrategy keeps the others as they are.", n.Updated, n.Matched)
	}
	c.Message = brief(c.Message)
	return c
}

func toGo(outdated, inFlight int32) string {
	return fmt.Sprintf("%d are not, and %d were restarted and are not back.", outdated, inFlight)
}

// degraded returns the condition Degraded, without its time.
func degraded(o Observation) metav1.Condition {
	c := metav1.Condition{Type: appsv1beta1.ConditionDegraded, Status: metav1.ConditionTrue}
	r := o.Rollout
	outdated := o.Counters.Matched - o.Counters.Updated + r.Uninjected
	switch {
	case o.Problem != nil:
		c.Reason, c.Message = appsv1beta1.ReasonInvalid, "The SidecarSet cannot be used: see the condition Accepted."
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
		c.Reason, c.Message = appsv1beta1.ReasonBlocked, blockedMessage(o.Blocked)
	default:
		c.Status = metav1.ConditionFalse
	}
	if c.Status == metav1.ConditionFalse {
		c.Reason, c.Message = appsv1beta1.ReasonAsExpected, "No Pod needs a user."
	}
	c.Message = brief(c.Message)
	return c
}

// needsUser reports whether there is a reason that does not pass by itself.
func needsUser(blocked []appsv1beta1.SidecarSetPodGroup) bool {
	for i := range blocked {
		switch inplace.Reason(blocked[i].Reason) {
		case inplace.RunToCompletion: // the Pod ends
		case inplace.NodeNotReady: // the node comes back, or the Pod goes
		case inplace.WriteFailed: // is tried again
		case inplace.ResizeDeferred: // the kubelet tries again
		case inplace.MirrorPod: // follows its static Pod
		case recreate.DisruptionBudget: // allows it later
		default:
			return true
		}
	}
	return false
}

// stalledMessage says which Pods are not back, and why as far as it is known.
// How long that has been so is not in it: the message would change each minute.
func stalledMessage(r *Rollout) string {
	if r.Stuck > 0 {
		return fmt.Sprintf("%d Pods were evicted whose replacements do not become ready, and maxUnavailable allows no more.", r.Stuck)
	}
	if r.InFlight == 0 {
		return "The Pods of the first batch are updated and are not ready."
	}
	message := fmt.Sprintf("%d Pods were restarted and do not come back", r.InFlight)
	separator := ": "
	for _, group := range r.Failing {
		message += fmt.Sprintf("%s%d %s%s", separator, group.Pods, group.Reason, example(group))
		separator = "; "
	}
	return message + "."
}

func blockedMessage(blocked []appsv1beta1.SidecarSetPodGroup) string {
	return fmt.Sprintf("%d Pods cannot be updated: %s. status.blockedPods names the first ones.", sum(blocked), reasons(blocked))
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
