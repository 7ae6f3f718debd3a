// Package events decides which Events the operator writes about SidecarSets and their
// Pods, with which messages, and within which limits. It knows nothing about how an Event
// reaches the API server.
package events

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/text"
)

// SidecarSet is the object that an Event is about. The UID distinguishes it from an
// earlier SidecarSet of the same name.
type SidecarSet struct {
	Name string
	UID  types.UID
}

// Of returns the reference to a SidecarSet.
func Of(set *appsv1beta1.SidecarSet) SidecarSet {
	return SidecarSet{set.Name, set.UID}
}

// Event is one message about a SidecarSet or one of its Pods. The zero Event means no
// message.
type Event struct {
	About SidecarSet
	// Pod is the Pod that the Event is about; zero if it is about the SidecarSet.
	Pod Pod
	// Type is corev1.EventTypeNormal or corev1.EventTypeWarning.
	Type string
	// Reason is the condition's reason, where the Event is about one.
	Reason string
	// Action is what the operator did or tried. A later Event with the same Action
	// about the same object replaces one that is not written yet.
	Action string
	// Note is the message, no longer than the API allows.
	Note string
}

// The actions of Events.
const (
	ActionRegisterWebhook = "RegisterWebhook"
	ActionRecordRevision  = "RecordRevision"
	ActionInject          = "Inject"
)

// Ready says that the next selected Pod will be injected. Reason and message are
// those of the condition Ready.
func Ready(about SidecarSet, reason, message string) Event {
	return Event{about, Pod{}, corev1.EventTypeNormal, reason, ActionRegisterWebhook, bounded(message)}
}

// NotReady says that the next selected Pod will not be injected, and why. Reason and
// message are those of the condition Ready. A pause and an edit that new Pods do not get yet are
// intended by the user, so they are not warnings.
func NotReady(about SidecarSet, reason, message string) Event {
	kind := corev1.EventTypeWarning
	if reason == appsv1beta1.ReasonPaused || reason == appsv1beta1.ReasonRevisionNotStable {
		kind = corev1.EventTypeNormal
	}
	return Event{about, Pod{}, kind, reason, ActionRegisterWebhook, bounded(message)}
}

// RevisionNotRecorded says that the revision of a SidecarSet could not be recorded in a
// ControllerRevision, so status.observedGeneration stays behind.
func RevisionNotRecorded(about SidecarSet, err error) Event {
	return Event{about, Pod{}, corev1.EventTypeWarning, appsv1beta1.ReasonRevisionNotRecorded, ActionRecordRevision,
		bounded("status.observedGeneration stays behind until the revision is recorded: " + err.Error())}
}

// InjectionConflict says that a Pod was refused because of a SidecarSet. conflict names the
// SidecarSet and what to change. namespace is that of the Pod; leave it empty if the
// snapshot does not know it: the request that named it may be forged.
func InjectionConflict(about SidecarSet, namespace string, conflict error) Event {
	where := ""
	if namespace != "" {
		where = " in namespace " + namespace
	}
	return Event{about, Pod{}, corev1.EventTypeWarning, appsv1beta1.ReasonInjectionConflict, ActionInject,
		bounded("A Pod" + where + " was refused: " + conflict.Error())}
}

// InjectionIncomplete says what an injected Pod does not get of what the SidecarSet asks for.
// kind is the Action, so that Events of one kind replace each other. namespace is as for
// InjectionConflict.
func InjectionIncomplete(about SidecarSet, namespace, kind, note string) Event {
	where := ""
	if namespace != "" {
		where = " in namespace " + namespace
	}
	return Event{about, Pod{}, corev1.EventTypeWarning, appsv1beta1.ReasonInjectionIncomplete, kind,
		bounded("A Pod" + where + " does not get all that the SidecarSet asks for: " + note)}
}

// maxNote is the longest note that API servers accept, in bytes.
const maxNote = 1024

func bounded(note string) string { return text.Cut(note, maxNote) }

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
