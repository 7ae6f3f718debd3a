package inplace

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/sidecarset/operator/internal/podstate"
)

// Verdict is how a matched Pod can get the revision. Reason is why it cannot be updated in
// place now; it is empty for the ways Current, Images and Resize.
type Verdict struct {
	Reason Reason
	Method Method
	// Changed are the kinds of the containers that get another image.
	Changed podstate.Kinds
	// Moves: the Pod is being resized to the revision, and the kubelet has not carried that out.
	Moves bool
}

// Node is the state of a Pod's node. The zero value is a ready node with a current
// kubelet, or a Pod that is not scheduled.
type Node struct {
	// TooOld: the kubelet does not restart native sidecars.
	TooOld bool
	// NotReady: the node is not ready, or is gone.
	NotReady bool
}

// NodeOf reads the state of a Node.
func NodeOf(node *corev1.Node) Node {
	isReady := func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	return Node{TooOld: TooOld(node.Status.NodeInfo.KubeletVersion), NotReady: !slices.ContainsFunc(node.Status.Conditions, isReady)}
}

// Judge decides how a Pod can get the revision. It does not check whether a resize is possible for
// this Pod; UpdateInPlace does.
func (c *Revision) Judge(r *podstate.Summary, node Node) Verdict {
	return c.judge(r, node, c.changesIn(r))
}

// judge is Judge for a Pod in which the images of containers of these kinds have to change.
func (c *Revision) judge(r *podstate.Summary, node Node, changed podstate.Kinds) Verdict {
	in, has := r.Injection(c.name)
	same := in.Hash == c.hash || in.HashWithoutImage == c.hashWithoutImage // apart from images
	resizing := in.ResizeTo != 0
	difference, recorded := c.differences[in.HashWithoutImage]
	switch {
	case !has || !r.Active:
		return Verdict{Method: LeaveAlone}
	case r.Facts.Mirror:
		return Verdict{Method: LeaveAlone, Reason: MirrorPod}
	case !c.containedIn(r):
		return Verdict{Method: Recreate, Reason: ImmutableFieldChanged}
	case in.Hash == c.hash && !resizing:
		return Verdict{Method: Current}
	case r.RecordUnreadable:
		return Verdict{Method: LeaveAlone, Reason: RecordUnreadable}
	case !same && in.HashWithoutImage == 0:
		return Verdict{Method: Recreate, Reason: RevisionUnknown}
	case c.differences == nil && c.differs(in):
		return Verdict{Method: Unknown}
	case !same && (!recorded || difference.Other):
		return Verdict{Method: Recreate, Reason: ImmutableFieldChanged}
	case !same && difference.Restarts:
		return Verdict{Method: Recreate, Reason: ResizeRestarts}
	}
	v := judgeRestarts(r, node, changed)
	if v.Method == Images && (resizing || !same) {
		v.Method = Resize
		if in.ResizeTo == c.hashWithoutImage {
			v = v.observed(r.Resize(c.name))
		}
	}
	return v
}

// observed returns the verdict on a Pod that is being resized to the current revision.
func (v Verdict) observed(state podstate.ResizeState) Verdict {
	switch reason := resizeReasons[state]; {
	case state == podstate.ResizeMoving:
		v.Moves = true
	case reason == ResizeInfeasible:
		v.Method, v.Reason = Recreate, reason
	case reason != "":
		v.Method, v.Reason = LeaveAlone, reason
	}
	return v
}

// resizeReasons are the reasons for which a Pod is not updated in states that may last.
var resizeReasons = map[podstate.ResizeState]Reason{
	podstate.ResizePutOff: ResizeDeferred, podstate.ResizeExcluded: ResizeInfeasible, podstate.ResizeBroken: ResizeFailed,
}

// IsOfResize reports whether a resize that is under way is the reason, and does not end by itself
// soon.
func (r Reason) IsOfResize() bool {
	return slices.Contains(slices.Collect(maps.Values(resizeReasons)), r)
}

func judgeRestarts(r *podstate.Summary, node Node, changed podstate.Kinds) Verdict {
	switch once := changed.Has(podstate.RunsOnce); {
	case !changed.Restarts():
	case once && r.RunsToCompletion, r.Facts.CountsRestarts:
		return Verdict{Method: LeaveAlone, Reason: RunToCompletion, Changed: changed}
	case once:
		return Verdict{Method: Recreate, Reason: RunsOnce, Changed: changed}
	case r.Facts.RestartsAll:
		return Verdict{Method: LeaveAlone, Reason: RestartRules, Changed: changed}
	case node.TooOld && changed.Has(podstate.Native):
		return Verdict{Method: Recreate, Reason: NodeTooOld, Changed: changed}
	}
	return Verdict{Method: Images, Changed: changed}
}

var restartsNativeSidecars = version.MajorMinor(1, 32)

// TooOld reports whether a kubelet of this version, from a Node's status, does not
// restart native sidecars whose image changes. It returns false for a version that
// cannot be read.
func TooOld(kubelet string) bool {
	v, err := version.ParseGeneric(kubelet)
	return err == nil && v.LessThan(restartsNativeSidecars)
}
