package podstate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Trouble is why a container does not run, as the kubelet says it. Zero means that
// nothing is known to be wrong.
type Trouble uint8

// Troubles is how many values of Trouble there are.
const Troubles Trouble = 9

// kubeletReasons are the reasons of state.waiting that do not pass in the usual
// course of things, and, last, one of lastState.terminated.
var kubeletReasons = [Troubles]string{
	"", "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
	"RunContainerError", "CrashLoopBackOff", "OOMKilled",
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
	if status.State.Waiting == nil {
		return 0
	}
	return Trouble(max(0, slices.Index(kubeletReasons[:Troubles-1], status.State.Waiting.Reason)))
}
