package podstate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Trouble is why a container does not run, as the kubelet says it. Zero means that
// nothing is known to be wrong.
type Trouble uint8

// Troubles is how many values of Trouble there are.
const Troubles Trouble = 11

// kubeletReasons are the reasons of state.waiting that are not part of a usual start, then
// those of state.terminated, and, last, one of lastState.terminated. A native sidecar that
// exited with code 0, and whose image cannot be pulled, is terminated; the kubelet reports no
// other reason.
var kubeletReasons = [Troubles]string{
	"", "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
	"RunContainerError", "CrashLoopBackOff", "Completed", "Error", "OOMKilled",
}

// String returns the kubelet's word, "" for none.
func (t Trouble) String() string { return kubeletReasons[t] }

func troubleOf(status *corev1.ContainerStatus) Trouble {
	if status == nil || status.Ready {
		return 0
	}
	if last := status.LastTerminationState.Terminated; last != nil && status.State.Running == nil && last.Reason == kubeletReasons[Troubles-1] {
		return Troubles - 1
	}
	reason := ""
	switch state := status.State; {
	case state.Waiting != nil:
		reason = state.Waiting.Reason
	case state.Terminated != nil:
		reason = state.Terminated.Reason
	}
	return Trouble(max(0, slices.Index(kubeletReasons[:], reason)))
}
