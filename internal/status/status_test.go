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

func TestNextReportsAnInvalidSidecarSet(t *testing.T) {
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

func TestNextSaysWhetherTheNextPodIsInjected(t *testing.T) {
	said := func(status metav1.ConditionStatus, reason string, generation int64) []metav1.Condition {
		return []metav1.Condition{{Type: appsv1beta1.ConditionReady, Status: status, Reason: reason, ObservedGeneration: generation}}
	}
	yes := &status.Readiness{Ready: true, Reason: appsv1beta1.ReasonReady}
	no := &status.Readiness{Reason: appsv1beta1.ReasonEntryRefused}
	unsure := &status.Readiness{Reason: appsv1beta1.ReasonNotInForce, Unsure: true}
	tests := map[string]struct {
		before []metav1.Condition
		next   status.Observation
		want   []metav1.Condition
	}{
		"nothing is known":                          {nil, status.Observation{Generation: 2}, nil},
		"nothing new is known":                      {said("True", appsv1beta1.ReasonReady, 2), status.Observation{Generation: 2}, said("True", appsv1beta1.ReasonReady, 2)},
		"yes":                                       {nil, status.Observation{Generation: 2, Readiness: yes}, said("True", appsv1beta1.ReasonReady, 2)},
		"no takes back a yes":                       {said("True", appsv1beta1.ReasonReady, 2), status.Observation{Generation: 2, Readiness: no}, said("False", appsv1beta1.ReasonEntryRefused, 2)},
		"doubt does not":                            {said("True", appsv1beta1.ReasonReady, 2), status.Observation{Generation: 2, Readiness: unsure}, said("True", appsv1beta1.ReasonReady, 2)},
		"unless it is about another generation":     {said("True", appsv1beta1.ReasonReady, 1), status.Observation{Generation: 2, Readiness: unsure}, said("False", appsv1beta1.ReasonNotInForce, 2)},
		"what cannot be used is not ready":          {nil, status.Observation{Generation: 2, Problem: errors.New("x")}, said("False", appsv1beta1.ReasonInvalid, 2)},
		"what cannot be used any more is not ready": {said("True", appsv1beta1.ReasonReady, 2), status.Observation{Generation: 2, Problem: errors.New("x")}, said("False", appsv1beta1.ReasonInvalid, 2)},
		"what cannot be used is not, also in doubt": {said("True", appsv1beta1.ReasonReady, 2), status.Observation{Generation: 2, Problem: errors.New("x"), Readiness: unsure}, said("False", appsv1beta1.ReasonInvalid, 2)},
		"what cannot be used is not, also by entry": {said("True", appsv1beta1.ReasonReady, 2), status.Observation{Generation: 2, Problem: errors.New("x"), Readiness: yes}, said("False", appsv1beta1.ReasonInvalid, 2)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.next.Now = start
			var got []metav1.Condition
			for _, c := range status.Next(appsv1beta1.SidecarSetStatus{Conditions: tc.before}, tc.next).Conditions {
				if c.Type == appsv1beta1.ConditionReady {
					c.Message, c.LastTransitionTime = "", metav1.Time{}
					got = append(got, c)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("condition (-want +got):\n%s", diff)
			}
		})
	}
}
