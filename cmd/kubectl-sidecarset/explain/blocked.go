package explain

import (
	"slices"

	"github.com/sidecarset/operator/internal/inplace"
)

// recreateIt is the remedy where only a new Pod can get the content.
const recreateIt = "recreate the Pod"

// Blocked returns the meaning of a reason for which a running Pod is not updated, and what to do,
// as docs/troubleshooting.md has them.
func Blocked(reason inplace.Reason) (meaning, remedy string) {
	if text, known := blocked[reason]; known {
		return text[0], text[1]
	}
	return "docs/troubleshooting.md explains the reason", "look at status.blockedPods of the SidecarSet"
}

var blocked = map[inplace.Reason][2]string{
	inplace.ImmutableFieldChanged:  {"more changed than an update in place can write", recreateIt},
	inplace.RevisionUnknown:        {"the content that the Pod was injected with is not recorded", recreateIt},
	inplace.RunToCompletion:        {"a restart could end the Pod or fail its Job", "let it finish; make the sidecar native"},
	inplace.RunsOnce:               {"the sidecar's own restartPolicy is not Always, so the kubelet might never start it again", recreateIt},
	inplace.RestartRules:           {"a restart rule of the Pod could restart all of its containers", recreateIt},
	inplace.NodeTooOld:             {"the node's kubelet is older than 1.32 and does not restart native sidecars", "update the node, or recreate the Pod"},
	inplace.NodeNotReady:           {"the node is not ready or gone", "nothing: the leader updates the Pod when its node is ready"},
	inplace.UpdateTimedOut:         {"the node has not carried out the update for ten minutes", "look at the node, or recreate the Pod"},
	inplace.WriteRejected:          {"the API server refused the write", "change the policy, quota or webhook that refuses"},
	inplace.WriteFailed:            {"the API server did not carry out the write", "nothing: the leader tries again"},
	inplace.WriteReverted:          {"another program took the update back", "find that webhook or controller"},
	inplace.UpdateImpossible:       {"the leader cannot compute the update", recreateIt},
	inplace.ResourcesHeldElsewhere: {"another program has resized the sidecar", "exclude the sidecar in that program, or recreate the Pod"},
	inplace.ResizeDeferred:         {"the node has not enough free resources now", "wait, or recreate the Pod"},
	inplace.ResizeInfeasible:       {"the node can never give the sidecar these resources", recreateIt},
	inplace.ResizeFailed:           {"the kubelet could not carry out the resize", "write a larger value"},
	inplace.ResizeUnsupported:      {"the API server does not have pods/resize", "update Kubernetes, or recreate the Pod"},
	inplace.ResizeRestarts:         {"the sidecar's resizePolicy asks for a restart", recreateIt},
	inplace.RecordUnreadable:       {"the annotation sidecarset.io/in-place cannot be read", "remove that annotation of the Pod"},
	inplace.MirrorPod:              {"the Pod is the API server's copy of a static Pod", "change the static Pod"},
}

// NewPodHelps reports whether a new Pod would have the content that a Pod with this reason lacks.
func NewPodHelps(reason inplace.Reason) bool {
	_, remedy := Blocked(reason)
	return remedy == recreateIt || slices.Contains([]inplace.Reason{inplace.NodeTooOld, inplace.ResourcesHeldElsewhere, inplace.ResizeUnsupported}, reason)
}
