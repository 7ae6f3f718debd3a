package inplace

import "k8s.io/apimachinery/pkg/util/version"

// Question is what Judge looks at: one Pod and the current content of one
// SidecarSet that the Pod carries.
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
	// RevisionUnknown: which content the Pod was given is not known any more.
	RevisionUnknown bool
	// Difference is what the content that the Pod was given and the current one differ
	// in, nil if that is not known.
	Difference *Difference
	// Uncompared: the Difference is about to be known.
	Uncompared bool
	// Resizing: a resize is under way, so that the Pod has not what it records.
	Resizing bool
	// RecordUnreadable: the Pod's record of updates cannot be read.
	RecordUnreadable bool
}

// Node is what is known about the node of a Pod. The zero value is a node that
// runs a current kubelet, or a Pod that is not scheduled.
type Node struct {
	// TooOld: the kubelet does not restart native sidecars.
	TooOld bool
	// NotReady: the node is not ready, or is gone.
	NotReady bool
}

// Verdict is how a Pod can follow, and why it cannot follow in place. Reason is
// empty for the ways Current and Images.
type Verdict struct {
	Way    Way
	Reason Reason
}

// Judge decides which way a Pod can follow. What the Pod's own resources have to say
// about a resize it does not know.
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

// TooOld reports whether a kubelet of this version, as a Node's status has it,
// does not restart native sidecars whose image changes. Of a version that cannot
// be read it is assumed that it does.
func TooOld(kubelet string) bool {
	v, err := version.ParseGeneric(kubelet)
	return err == nil && v.LessThan(restartsNativeSidecars)
}
