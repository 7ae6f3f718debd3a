package events

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Pod is a Pod that an Event is about.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	// Version is the resourceVersion of the write that the Event is about. It
	// distinguishes the Event from those about other writes. It is empty if nothing was
	// written.
	Version string
}

// ActionResetContainer is the action of Events about the end of a hot upgrade.
const ActionResetContainer = "ResetContainer"

// The texts of Events about Pods are those of OpenKruise.

// ContainerReset says that the old container of a hot upgrade was given the empty
// image.
func ContainerReset(about SidecarSet, pod Pod) Event {
	return Event{about, pod, corev1.EventTypeNormal, appsv1beta1.ReasonContainerReset, ActionResetContainer,
		"reset sidecar container image empty successfully"}
}

// ContainerNotReset says why the old container of a hot upgrade could not be given the
// empty image. It is tried again.
func ContainerNotReset(about SidecarSet, pod Pod, err error) Event {
	return Event{about, pod, corev1.EventTypeWarning, appsv1beta1.ReasonContainerNotReset, ActionResetContainer,
		bounded("reset sidecar container image empty failed: " + err.Error())}
}
