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

// Judge decides which way a Pod can follow. It does not know about resources: a
// Pod whose content differs in more than images is to be recreated.
func Judge(q Question) Verdict {
	switch {
	case q.Facts.Mirror:
		return Verdict{LeaveAlone, MirrorPod}
	case q.SameHash:
		return Verdict{Way: Current}
	case q.RecordUnreadable:
		return Verdict{LeaveAlone, RecordUnreadable}
	case q.SameWithoutImage:
		return judgeImages(q)
	case q.RevisionUnknown:
		return Verdict{Recreate, RevisionUnknown}
	}
	return Verdict{Recreate, ImmutableFieldChanged}
}

func judgeImages(q Question) Verdict {
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
