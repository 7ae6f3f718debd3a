package events_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/events"
)

func about(name string) events.SidecarSet {
	return events.SidecarSet{Name: name, UID: types.UID("uid-" + name)}
}

func TestEvents(t *testing.T) {
	long := errors.New(strings.Repeat("ü", 2000))
	tests := map[string]struct {
		event        events.Event
		kind, reason string
		says         string
	}{
		"Ready":                   {events.Ready(about("a"), "Injecting", "The next Pod"), corev1.EventTypeNormal, "Injecting", "The next Pod"},
		"not Ready":               {events.NotReady(about("a"), "NoReplica", "No replica"), corev1.EventTypeWarning, "NoReplica", "No replica"},
		"a pause":                 {events.NotReady(about("a"), "Paused", "New Pods"), corev1.EventTypeNormal, "Paused", "New Pods"},
		"no revision":             {events.RevisionNotRecorded(about("a"), errors.New("quota")), corev1.EventTypeWarning, appsv1beta1.ReasonRevisionNotRecorded, "quota"},
		"a conflict":              {events.InjectionConflict(about("a"), "ns", errors.New("both bring x")), corev1.EventTypeWarning, appsv1beta1.ReasonInjectionConflict, "A Pod in namespace ns was refused: both bring x"},
		"a conflict, nameless":    {events.InjectionConflict(about("a"), "", errors.New("both bring x")), corev1.EventTypeWarning, appsv1beta1.ReasonInjectionConflict, "A Pod was refused: both bring x"},
		"a Pod that lacks a part": {events.InjectionIncomplete(about("a"), "ns", "Volume", "b"), corev1.EventTypeWarning, appsv1beta1.ReasonInjectionIncomplete, "A Pod in namespace ns does not get all that the SidecarSet asks for: b"},
		"a reset Pod":             {events.ContainerReset(about("a"), events.Pod{Name: "p"}), corev1.EventTypeNormal, "ResetContainerSucceed", "reset sidecar container image empty successfully"},
		"a Pod not reset":         {events.ContainerNotReset(about("a"), events.Pod{Name: "p"}, long), corev1.EventTypeWarning, "ResetContainerFailed", "reset sidecar container image empty failed: ü"},
		"a long message":          {events.InjectionConflict(about("a"), "", long), corev1.EventTypeWarning, appsv1beta1.ReasonInjectionConflict, "…"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e := tc.event
			if e.About != about("a") || e.Type != tc.kind || e.Reason != tc.reason || e.Action == "" || !strings.Contains(e.Note, tc.says) {
				t.Errorf("Event %+v", e)
			}
			if len(e.Note) > 1024 || !utf8.ValidString(e.Note) {
				t.Errorf("a note of %d bytes, valid %v", len(e.Note), utf8.ValidString(e.Note))
			}
		})
	}
}
