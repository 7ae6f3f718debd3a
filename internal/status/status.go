// Package status knows what a SidecarSet's status says, given the counters of
// its Pods and whether its spec could be used. It refuses to know how Pods are
// counted, what time it is, and how a status is written.
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

// Observation is what a status is made of.
type Observation struct {
	// Generation is that of the object whose selectors and hash the counters
	// were computed with, whatever generation is stored by now.
	Generation int64
	Counters   tally.Counters
	// Revision is the newest ControllerRevision; nil if none could be recorded, so
	// that what the status says of it stays.
	Revision *Revision
	// Problem says why the object cannot be used; nil if it can.
	Problem error
	// Readiness is what is known of the next Pod; nil if nothing is, so that the
	// condition stays, unless there is a Problem.
	Readiness *Readiness
	// Uninjected and Blocked Pods by reason, and the matched Pods by revision, in any
	// order. Names are those of the Pods, unbounded. Without a Revision, what the
	// status says of revisions stays.
	Uninjected, Blocked []appsv1beta1.SidecarSetPodGroup
	Revisions           []appsv1beta1.SidecarSetRevisionPods
	// Rollout is what is known of the update of running Pods; nil if nothing is, so
	// that the conditions stay.
	Rollout *Rollout
	// Now becomes the transition time of a condition that changes.
	Now time.Time
}

// Revision says how the current content is recorded.
type Revision struct {
	Name string
	// CollisionCount is how often a name was taken.
	CollisionCount int32
	// Since is when the content became the current one.
	Since time.Time
	// All has the names of all revisions, old ones included.
	All []string
}

// Next returns the status that an observation makes of the previous one, whose
// other members it keeps. Neither argument is changed.
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
	set := func(c metav1.Condition) {
		c.ObservedGeneration = o.Generation
		c.LastTransitionTime = metav1.NewTime(o.Now.UTC().Truncate(time.Second)) // what survives JSON
		meta.SetStatusCondition(&next.Conditions, c)
	}
	set(accepted(o))
	if o.Readiness != nil || o.Problem != nil {
		set(ready(previous.Conditions, o))
	}
	if o.Rollout != nil {
		p, d := progressing(o), degraded(o)
		set(p)
		set(d)
		c, ok := generic(p, d)
		withoutGeneric(&next.Conditions, c.Type)
		if ok {
			set(c)
		}
	}
	return next
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
