package inplace

import "k8s.io/apimachinery/pkg/util/version"

// Question is the input of Judge: one Pod and the current content of one SidecarSet
// that the Pod carries.
type Question struct {
	Facts Facts
	Node  Node
	// Changed has the kinds of the containers that would get another image.
	Changed Kinds
	// SameHash: the Pod records the hash of the current content.
	SameHash bool
	// SameWithoutImage: the Pod records the hash of the current content that ignores
	// images.
	SameWithoutImage bool
	// RevisionUnknown: the content that the Pod was injected with is unknown.
	RevisionUnknown bool
	// Difference is the difference between the Pod's recorded content and the current
	// one; nil if it is unknown.
	Difference *Difference
	// Uncompared: the contents are not compared yet.
	Uncompared bool
	// Resizing: a resize is under way, so the Pod differs from the content that it records.
	Resizing bool
	// RecordUnreadable: the Pod's record of updates cannot be read.
	RecordUnreadable bool
}

// Node is the state of a Pod's node. The zero value is a ready node with a current
// kubelet, or a Pod that is not scheduled.
type Node struct {
	// TooOld: the kubelet does not restart native sidecars.
	TooOld bool
	// NotReady: the node is not ready, or is gone.
	NotReady bool
}

// Verdict is how a Pod can be updated, and why it cannot be updated in place. Reason is
// empty for the ways Current, Images and Resize.
type Verdict struct {
	Way    Way
	Reason Reason
}

// Judge decides how a Pod can be updated. It does not check whether a resize is
// possible for this Pod; PlanResize does.
func Judge(q Question) Verdict {
	switch {
	case q.Facts.Mirror:
		return Verdict{LeaveAlone, MirrorPod}
	case q.SameHash && !q.Resizing:
		return Verdict{Way: Current}
	case q.RecordUnreadable:
		return Verdict{LeaveAlone, RecordUnreadable}
	case q.SameHash || q.SameWithoutImage:
		return judgeImages(q, q.Resizing)
	case q.RevisionUnknown:
		return Verdict{Recreate, RevisionUnknown}
	case q.Uncompared:
		return Verdict{Way: Resize}
	case q.Difference == nil || q.Difference.Other:
		return Verdict{Recreate, ImmutableFieldChanged}
	case q.Difference.Restarts:
		return Verdict{Recreate, ResizeRestarts}
	}
	return judgeImages(q, true)
}

// judgeImages decides about a Pod that needs other images, and another size first if
// resizes is true.
func judgeImages(q Question, resizes bool) Verdict {
	if verdict := judgeRestarts(q); verdict.Way != Images || !resizes {
		return verdict
	}
	return Verdict{Way: Resize}
}

func judgeRestarts(q Question) Verdict {
	switch {
	case !q.Changed.Restarts():
		return Verdict{Way: Images}
	case q.Changed.Has(RunsOnce), q.Facts.CountsRestarts:
		return Verdict{LeaveAlone, RunToCompletion}
	case q.Facts.RestartsAll:
		return Verdict{LeaveAlone, RestartRules}
	case q.Node.TooOld && q.Changed.Has(Native):
		return Verdict{Recreate, NodeTooOld}
	case q.Node.NotReady:
		return Verdict{LeaveAlone, NodeNotReady}
	}
	return Verdict{Way: Images}
}

var restartsNativeSidecars = version.MajorMinor(1, 32)

// TooOld reports whether a kubelet of this version, from a Node's status, does not
// restart native sidecars whose image changes. It returns false for a version that
// cannot be read.
func TooOld(kubelet string) bool {
	v, err := version.ParseGeneric(kubelet)
	return err == nil && v.LessThan(restartsNativeSidecars)
}
