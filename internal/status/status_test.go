package status_test

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/status"
	"github.com/sidecarset/operator/internal/tally"
)

var (
	start = time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	count = tally.Counters{Matched: 5, Updated: 4, Ready: 3, UpdatedReady: 2, Uninjected: 1}
)

func TestNextTakesTheCountersAndTheirGeneration(t *testing.T) {
	previous := appsv1beta1.SidecarSetStatus{
		ObservedGeneration: 9, LatestRevision: "log-1", CollisionCount: new(int32(2)),
		Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue}},
	}
	want := appsv1beta1.SidecarSetStatus{
		ObservedGeneration: 7, MatchedPods: 5, UpdatedPods: 4, ReadyPods: 3, UpdatedReadyPods: 2, UninjectedPods: 1,
		LatestRevision: "log-1", CollisionCount: new(int32(2)),
		Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue}, {
			Type: appsv1beta1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: appsv1beta1.ReasonAccepted,
			Message: "The operator uses this SidecarSet.", ObservedGeneration: 7,
			LastTransitionTime: metav1.NewTime(start.Truncate(time.Second)),
		}},
	}
	got := status.Next(previous, status.Observation{Generation: 7, Counters: count, Now: start})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if len(previous.Conditions) != 1 {
		t.Error("the previous status was changed")
	}
}

func TestNextNamesTheRevision(t *testing.T) {
	previous := appsv1beta1.SidecarSetStatus{LatestRevision: "log-1"}
	got := status.Next(previous, status.Observation{Revision: &status.Revision{Name: "log-2"}, Now: start})
	if got.LatestRevision != "log-2" || got.CollisionCount == nil || *got.CollisionCount != 0 {
		t.Errorf("status = %+v", got)
	}
}

func TestNextTellsWhatIsWrong(t *testing.T) {
	problem := errors.New(`SidecarSet log: spec.selector.matchExpressions[0].operator: "Inn" is not an operator`)
	got := status.Next(appsv1beta1.SidecarSetStatus{}, status.Observation{Generation: 1, Problem: problem, Now: start}).Conditions[0]
	if got.Status != metav1.ConditionFalse || got.Reason != appsv1beta1.ReasonInvalid || !strings.Contains(got.Message, problem.Error()) {
		t.Errorf("condition = %+v", got)
	}
}

func TestNextKeepsMessagesWithinTheSchema(t *testing.T) {
	problem := errors.New(strings.Repeat("ü", 40000))
	got := status.Next(appsv1beta1.SidecarSetStatus{}, status.Observation{Problem: problem}).Conditions[0].Message
	if len(got) > 32768 || !utf8.ValidString(got) {
		t.Errorf("message of %d bytes, valid %v", len(got), utf8.ValidString(got))
	}
}

func TestNextIsStable(t *testing.T) {
	first := status.Next(appsv1beta1.SidecarSetStatus{}, status.Observation{Generation: 1, Counters: count, Now: start})
	tests := map[string]struct {
		next    status.Observation
		equal   bool
		changes metav1.Time
	}{
		"the same later is nothing to write":     {status.Observation{Generation: 1, Counters: count, Now: start.Add(time.Hour)}, true, first.Conditions[0].LastTransitionTime},
		"another count is":                       {status.Observation{Generation: 1, Now: start.Add(time.Hour)}, false, first.Conditions[0].LastTransitionTime},
		"another generation is":                  {status.Observation{Generation: 2, Counters: count, Now: start.Add(time.Hour)}, false, first.Conditions[0].LastTransitionTime},
		"a problem is, and moves the transition": {status.Observation{Generation: 1, Counters: count, Now: start.Add(time.Hour), Problem: errors.New("x")}, false, metav1.NewTime(start.Add(time.Hour).Truncate(time.Second))},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			next := status.Next(first, tc.next)
			if got := status.Equal(first, next); got != tc.equal {
				t.Errorf("Equal = %v, want %v", got, tc.equal)
			}
			if got := next.Conditions[0].LastTransitionTime; !got.Equal(&tc.changes) {
				t.Errorf("transition at %v, want %v", got, tc.changes)
			}
		})
	}
}
