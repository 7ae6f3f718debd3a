// Package status computes a SidecarSet's status from the counters of its Pods, the plan of its
// rollout and other values. It knows nothing about how Pods are counted or how a status is
// written, and has no clock.
package status

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/reasons"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/text"
)

// Counters are the numbers of a SidecarSet's Pods. The fields are those of the status.
type Counters struct {
	Matched, Updated, Ready, UpdatedReady, Uninjected int32
}

// Observation is the input from which a status is computed.
type Observation struct {
	// Name is that of the SidecarSet.
	Name string
	// Generation is that of the object with whose selectors and hash the counters were
	// computed, even if a newer generation is stored by now.
	Generation int64
	Counters   Counters
	// Revision is the newest ControllerRevision; nil if none could be recorded. Then the
	// status keeps what it says about revisions.
	Revision *Revision
	// Problem is why the object cannot be used; nil if it can.
	Problem error
	// InjectionPaused is spec.injectionStrategy.paused. Then there is no condition Ready.
	InjectionPaused bool
	// Readiness is whether the next Pod will be injected; nil if that is unknown. Then
	// the condition stays as it is, unless there is a Problem.
	Readiness *Readiness
	// Uninjected Pods by reason, and the matched Pods by revision, in any order. Names are
	// those of the Pods, unbounded.
	Uninjected []appsv1beta1.SidecarSetPodGroup
	Revisions  []appsv1beta1.SidecarSetRevisionPods
	// Hold: the revision is not stable. What is stored as the stable one stays so.
	Hold bool
	// Unrecorded says why no ControllerRevision records the current revision; nil if one does, or if
	// that is about to be tried again.
	Unrecorded error
	// Plan is that of the rollout; nil if it is unknown. Then the conditions about running Pods, and
	// what is stored of the rollout, stay as they are, unless the revision is Unrecorded. Since is when the revision became current.
	Plan  *rollout.Plan
	Since time.Time
	// Finalizers are those of a SidecarSet that is being deleted; nil for others.
	Finalizers []string
	// Now becomes the transition time of a condition that changes.
	Now time.Time
}

// Revision is the ControllerRevision of the current revision.
type Revision struct {
	Name string
	// CollisionCount is how often a name was taken.
	CollisionCount int32
	// Since is the time at which the revision became the current one.
	Since time.Time
	// All has the names of all revisions, old ones included.
	All []string
	// NewPods is the name of the revision that all new Pods get in place of this one; "": they get
	// this one. Held: that is so until this one is stable.
	NewPods string
	Held    bool
}

// Readiness reports whether the next Pod that a SidecarSet selects will be
// injected as its spec says.
type Readiness struct {
	// Ready is the answer; Reason and Message explain it, to users.
	Ready           bool
	Reason, Message string
	// Unsure is set if Ready is false only because a proof is missing. Then a condition
	// that is True for the same generation stays True.
	Unsure bool
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
	next.Uninjected = groups(o.Uninjected)
	if o.Revision != nil {
		next.LatestRevision = o.Revision.Name
		next.CollisionCount = new(o.Revision.CollisionCount)
		if !o.Hold {
			next.StableRevision = o.Revision.Name
		}
		next.Revisions = revisions(o.Revisions)
		if previous.LatestRevision != next.LatestRevision {
			setRollout(&next, rollout.Begun)
		}
	}
	if o.Plan != nil {
		next.BlockedPods, next.NotRunningPods = groupsOf(&o.Plan.Blocked), groupsOf(&o.Plan.NotRunning)
		setRollout(&next, o.Plan.Status)
	}
	next.Conditions = slices.Clone(previous.Conditions)
	set(&next, accepted(o), o.Now)
	switch {
	case o.Problem == nil && o.InjectionPaused:
		meta.RemoveStatusCondition(&next.Conditions, appsv1beta1.ConditionReady)
	case o.Readiness != nil || o.Problem != nil:
		set(&next, ready(previous.Conditions, o), o.Now)
	}
	if o.Finalizers != nil {
		set(&next, deleting(o.Finalizers), o.Now)
		return next
	}
	if o.Plan == nil {
		return Behind(next, o)
	}
	progressing, degraded := judge(o).conditions()
	set(&next, progressing, o.Now)
	set(&next, degraded, o.Now)
	setGeneric(&next, degraded, o.Now)
	return next
}

// setRollout stores what is kept of a rollout.
func setRollout(s *appsv1beta1.SidecarSetStatus, of rollout.Status) {
	s.RolloutStartTime, s.NotReadyBefore, s.DisappearedPods, s.DisappearedUntil = nil, nil, int32(of.Disappeared), nil
	if of.Started > 0 {
		s.RolloutStartTime = new(metav1.NewTime(time.Unix(of.Started, 0).UTC()))
	}
	if of.NotReadyBefore >= 0 {
		s.NotReadyBefore = new(int32(of.NotReadyBefore))
	}
	if of.Disappeared > 0 {
		s.DisappearedUntil = new(metav1.NewTime(time.Unix(of.DisappearedUntil, 0).UTC()))
	}
}

// RolloutOf returns what a status keeps of the rollout of a revision; it has begun only if the
// status is about that revision.
func RolloutOf(s appsv1beta1.SidecarSetStatus, revision string) rollout.Status {
	of := rollout.Begun
	if s.LatestRevision != revision {
		return of
	}
	if s.RolloutStartTime != nil {
		of.Started = max(0, s.RolloutStartTime.Unix())
	}
	if s.NotReadyBefore != nil {
		of.NotReadyBefore = int(max(0, *s.NotReadyBefore))
	}
	if s.DisappearedUntil != nil && s.DisappearedPods > 0 {
		of.Disappeared, of.DisappearedUntil = int(s.DisappearedPods), s.DisappearedUntil.Unix()
	}
	return of
}

// Behind returns the status of a SidecarSet whose present generation is not recorded: the
// previous one, which is about an earlier generation, with the condition Degraded. Without
// conditions about running Pods, it returns the previous one as it is.
func Behind(previous appsv1beta1.SidecarSetStatus, o Observation) appsv1beta1.SidecarSetStatus {
	next := previous
	if o.Unrecorded == nil || meta.FindStatusCondition(previous.Conditions, appsv1beta1.ConditionProgressing) == nil {
		return next
	}
	_, degraded := verdict{degraded: appsv1beta1.ReasonRevisionNotRecorded, because: unrecordedMessage(o)}.conditions()
	next.Conditions = slices.Clone(previous.Conditions)
	set(&next, degraded, o.Now)
	setGeneric(&next, degraded, o.Now)
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
	a.RolloutStartTime, b.RolloutStartTime = nil, nil
	return equality.Semantic.DeepEqual(a, b)
}

// InjectionPausedMessage says that new Pods are not injected, because the user paused that.
const InjectionPausedMessage = "New Pods are not injected while spec.injectionStrategy.paused is true."

func accepted(o Observation) metav1.Condition {
	c := metav1.Condition{
		Type:    appsv1beta1.ConditionAccepted,
		Status:  metav1.ConditionTrue,
		Reason:  appsv1beta1.ReasonAccepted,
		Message: "The operator uses this SidecarSet.",
	}
	switch {
	case o.Problem != nil:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, appsv1beta1.ReasonInvalid, invalidMessage(o.Problem)
	case o.InjectionPaused:
		c.Message += " " + InjectionPausedMessage
	}
	return c
}

// ready returns the condition, without its time, that follows from an observation and
// the previous condition. A SidecarSet that cannot be used is not ready, whatever else
// is known.
func ready(previous []metav1.Condition, o Observation) metav1.Condition {
	c := metav1.Condition{Type: appsv1beta1.ConditionReady, Status: metav1.ConditionFalse}
	if o.Problem != nil {
		c.Reason, c.Message = appsv1beta1.ReasonInvalid, invalidMessage(o.Problem)
		return c
	}
	before := meta.FindStatusCondition(previous, appsv1beta1.ConditionReady)
	if before != nil && before.ObservedGeneration != o.Generation {
		before = nil
	}
	held, wasHeld := o.isHeld(), before != nil && before.Reason == appsv1beta1.ReasonRevisionNotStable
	switch injects := o.Readiness.Ready || o.Readiness.Unsure && before != nil && (before.Status == metav1.ConditionTrue || wasHeld); {
	case !injects:
	case held:
		c.Reason, c.Message = appsv1beta1.ReasonRevisionNotStable, text.Cut(heldMessage(o), maxMessage)
		return c
	case wasHeld && o.Revision == nil: // it is not known that this has changed
		return *before
	case o.Readiness.Unsure && before.Status == metav1.ConditionTrue:
		return *before
	}
	c.Reason, c.Message = o.Readiness.Reason, text.Cut(o.Readiness.Message, maxMessage)
	if o.Readiness.Ready {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// maxMessage is the longest message that the schema of a condition allows, in bytes.
const maxMessage = 32768

func invalidMessage(problem error) string {
	return text.Cut("No Pod gets these sidecars until the SidecarSet is corrected: "+problem.Error(), maxMessage)
}

// passing has the reasons of Degraded with which the next revision may be applied all the same: it may
// replace these Pods, or cure them. While new Pods get an earlier revision because of it, sidecars that do not
// run are a reason to go back.
var passing = map[string]bool{appsv1beta1.ReasonBlocked: true, appsv1beta1.ReasonSidecarsNotRunning: true}

// passes reports whether a reason of a false Ready ends without a user.
func passes(reason string) bool {
	r, _ := reasons.Find(reasons.Ready, reason)
	return r.Passes
}

// setGeneric sets the condition from which tools that use kstatus read the state of an object:
// Reconciling while the generation comes into force, Stalled while Degraded is True. It removes
// the other one, or both. A rollout is neither: such tools wait until the object is current, and
// a rollout may take hours.
// Tools stop at a Stalled object.
func setGeneric(s *appsv1beta1.SidecarSetStatus, degraded metav1.Condition, now time.Time) {
	var c metav1.Condition
	ready := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionReady)
	switch {
	case degraded.Status == metav1.ConditionTrue && (!passing[degraded.Reason] || fails(ready, degraded)):
		c, c.Type = degraded, appsv1beta1.ConditionStalled
	case ready == nil:
	case ready.ObservedGeneration < s.ObservedGeneration:
		c = metav1.Condition{Type: appsv1beta1.ConditionReconciling, Reason: appsv1beta1.ReasonPending, Message: "It is not known yet whether new Pods get this generation."}
	case ready.Status != metav1.ConditionTrue && passes(ready.Reason):
		c = metav1.Condition{Type: appsv1beta1.ConditionReconciling, Reason: ready.Reason, Message: ready.Message}
	}
	for _, kind := range []string{appsv1beta1.ConditionReconciling, appsv1beta1.ConditionStalled} {
		if kind != c.Type {
			meta.RemoveStatusCondition(&s.Conditions, kind)
		}
	}
	if c.Type != "" {
		c.Status, c.Message = metav1.ConditionTrue, text.Cut(c.Message, maxText)
		set(s, c, now)
	}
}
