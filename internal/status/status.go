// Package status computes a SidecarSet's status from the counters of its Pods and other
// values. It knows nothing about how Pods are counted or how a status is written, and
// has no clock.
package status

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/tally"
)

// Observation is the input from which a status is computed.
type Observation struct {
	// Generation is that of the object with whose selectors and hash the counters were
	// computed, even if a newer generation is stored by now.
	Generation int64
	Counters   tally.Counters
	// Revision is the newest ControllerRevision; nil if none could be recorded. Then the
	// status keeps what it says about revisions.
	Revision *Revision
	// Problem is why the object cannot be used; nil if it can.
	Problem error
	// Readiness is whether the next Pod will be injected; nil if that is unknown. Then
	// the condition stays as it is, unless there is a Problem.
	Readiness *Readiness
	// Uninjected and Blocked Pods by reason, and the matched Pods by revision, in any order.
	// Names are those of the Pods, unbounded. Without a Revision, the status keeps what it
	// says about revisions.
	Uninjected, Blocked []appsv1beta1.SidecarSetPodGroup
	Revisions           []appsv1beta1.SidecarSetRevisionPods
	// Unrecorded says why no ControllerRevision records the content; nil if one does, or if
	// that is about to be tried again.
	Unrecorded error
	// Rollout is the state of the update of running Pods; nil if it is unknown. Then
	// the conditions stay as they are.
	Rollout *Rollout
	// Now becomes the transition time of a condition that changes.
	Now time.Time
}

// Revision is the ControllerRevision of the current content.
type Revision struct {
	Name string
	// CollisionCount is how often a name was taken.
	CollisionCount int32
	// Since is the time at which the content became the current one.
	Since time.Time
	// All has the names of all revisions, old ones included.
	All []string
}

// Next returns the status that follows from an observation and the previous status. It
// changes neither argument.
func Next(previous appsv1beta1.SidecarSetStatus, o Observation) appsv1beta1.SidecarSetStatus {
	next := previous
	next.ObservedGeneration = o.Generation
	next.MatchedPods = o.Counters.Matched
	next.UpdatedPods = o.Counters.Updated
	next.ReadyPods = o.Counters.Ready
	next.UpdatedReadyPods = o.Counters.UpdatedReady
	next.UninjectedPods = o.Counters.Uninjected
	if o.Revision != nil {
		next.LatestRevision = o.Revision.Name
		next.CollisionCount = new(o.Revision.CollisionCount)
	} else {
		o.Revisions = previous.Revisions
	}
	shown := detailOf(o)
	next.Uninjected, next.BlockedPods, next.Revisions = shown.Uninjected, shown.Blocked, shown.Revisions
	next.Conditions = slices.Clone(previous.Conditions)
	set(&next, accepted(o), o.Now)
	if o.Readiness != nil || o.Problem != nil {
		set(&next, ready(previous.Conditions, o), o.Now)
	}
	if o.Rollout != nil {
		p, d := progressing(o), degraded(o)
		set(&next, p, o.Now)
		set(&next, d, o.Now)
		setGeneric(&next, p, d, o.Now)
	}
	return next
}

// Behind returns the status of a SidecarSet whose present generation is not recorded: the
// previous one, which is about an earlier generation, with the condition Degraded. Without
// conditions about running Pods, it returns the previous one as it is.
func Behind(previous appsv1beta1.SidecarSetStatus, o Observation) appsv1beta1.SidecarSetStatus {
	next := previous
	p := meta.FindStatusCondition(previous.Conditions, appsv1beta1.ConditionProgressing)
	if p == nil || o.Unrecorded == nil {
		return next
	}
	d := metav1.Condition{Type: appsv1beta1.ConditionDegraded, Status: metav1.ConditionTrue, Reason: appsv1beta1.ReasonRevisionNotRecorded, Message: unrecordedMessage(o)}
	next.Conditions = slices.Clone(previous.Conditions)
	set(&next, d, o.Now)
	setGeneric(&next, *p, d, o.Now)
	return next
}

// set sets a condition of a status. A condition whose status changes gets the time.
func set(s *appsv1beta1.SidecarSetStatus, c metav1.Condition, now time.Time) {
	c.ObservedGeneration = s.ObservedGeneration
	c.LastTransitionTime = metav1.NewTime(now.UTC().Truncate(time.Second)) // what survives JSON
	meta.SetStatusCondition(&s.Conditions, c)
}

// Equal reports whether there is nothing to write.
func Equal(a, b appsv1beta1.SidecarSetStatus) bool {
	return equality.Semantic.DeepEqual(a, b)
}

func accepted(o Observation) metav1.Condition {
	c := metav1.Condition{
		Type:    appsv1beta1.ConditionAccepted,
		Status:  metav1.ConditionTrue,
		Reason:  appsv1beta1.ReasonAccepted,
		Message: "The operator uses this SidecarSet.",
	}
	if o.Problem != nil {
		c.Status = metav1.ConditionFalse
		c.Reason = appsv1beta1.ReasonInvalid
		c.Message = invalidMessage(o.Problem)
	}
	return c
}

// maxMessage is the longest message that the schema of a condition allows.
const maxMessage = 32768

func invalidMessage(problem error) string {
	return bounded("No Pod gets these sidecars until the SidecarSet is corrected: " + problem.Error())
}

func bounded(message string) string {
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "")
	}
	return message
}
