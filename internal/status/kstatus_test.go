package status_test

import (
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/status"
	"github.com/sidecarset/operator/internal/tally"
)

// kstatus reads an object of a kind that it does not know as sigs.k8s.io/cli-utils does:
// the first condition that says something decides, then Ready.
func kstatus(generation int64, s appsv1beta1.SidecarSetStatus) string {
	if s.ObservedGeneration != 0 && s.ObservedGeneration != generation {
		return "InProgress"
	}
	for _, c := range s.Conditions {
		switch {
		case c.Type == "Reconciling" && c.Status == metav1.ConditionTrue:
			return "InProgress"
		case c.Type == "Stalled" && c.Status == metav1.ConditionTrue:
			return "Failed"
		}
	}
	if ready := meta.FindStatusCondition(s.Conditions, "Ready"); ready != nil && ready.Status != metav1.ConditionTrue {
		return "InProgress"
	}
	return "Current"
}

// One SidecarSet from its creation on: each step begins with the status of the one
// before.
func TestKstatusReadsARollout(t *testing.T) {
	const generation = 7
	inForce := &status.Readiness{Ready: true, Reason: appsv1beta1.ReasonReady, Message: "In force."}
	s := appsv1beta1.SidecarSetStatus{ObservedGeneration: generation - 1}
	if got := kstatus(generation, s); got != "InProgress" {
		t.Errorf("before the generation is observed, it is %s", got)
	}
	for i, step := range []struct {
		what  string
		seen  status.Observation
		want  string
		extra string // the condition that only these tools read
	}{
		{"not in force", status.Observation{Readiness: &status.Readiness{Reason: appsv1beta1.ReasonEntryMissing}, Rollout: &status.Rollout{}}, "InProgress", ""},
		{"in force", status.Observation{Rollout: &status.Rollout{}}, "Current", ""},
		{"rolling out", status.Observation{Rollout: &status.Rollout{InFlight: 1, Waiting: 3, Moved: start}}, "InProgress", "Reconciling RollingOut"},
		{"more of it", status.Observation{Rollout: &status.Rollout{InFlight: 1, Waiting: 2, Moved: start}}, "InProgress", "Reconciling RollingOut"},
		{"nothing new is known of it", status.Observation{}, "InProgress", "Reconciling RollingOut"},
		{"stalled", status.Observation{Rollout: &status.Rollout{InFlight: 1, Waiting: 2, Moved: start.Add(-time.Hour)}}, "Failed", "Stalled Stalled"},
		{"the first batch is stalled", status.Observation{Rollout: &status.Rollout{InFlight: 1, Waiting: 2, FirstBatch: true, Moved: start.Add(-time.Hour)}}, "Failed", "Stalled FirstBatchNotReady"},
		{"it moves again", status.Observation{Rollout: &status.Rollout{InFlight: 1, Waiting: 1, Moved: start}}, "InProgress", "Reconciling RollingOut"},
		{"some cannot follow", status.Observation{Rollout: &status.Rollout{InFlight: 1, Moved: start}, Blocked: blocked(inplace.ImmutableFieldChanged, 1)}, "InProgress", "Reconciling RollingOut"},
		{"the others have followed", status.Observation{Rollout: &status.Rollout{}, Blocked: blocked(inplace.ImmutableFieldChanged, 1)}, "Current", ""},
		{"replacements fail, and some are not back", status.Observation{Rollout: &status.Rollout{InFlight: 1, Moved: start, Stopped: "Three replacements failed."}}, "Failed", "Stalled RecreationStopped"},
		{"paused", status.Observation{Rollout: &status.Rollout{Paused: true, Waiting: 2}}, "Current", ""},
		{"the partition is reached", status.Observation{Rollout: &status.Rollout{Keep: 3}}, "Current", ""},
		{"of no use", status.Observation{Problem: errors.New("x"), Rollout: &status.Rollout{}}, "Failed", "Stalled InvalidSpec"},
		{"running Pods are left alone", status.Observation{Rollout: &status.Rollout{NotUpdate: true}}, "Current", ""},
	} {
		o := step.seen
		o.Generation, o.Now, o.Counters = generation, start.Add(time.Duration(i)*time.Second), tally.Counters{Matched: 5, Updated: 2}
		if o.Readiness == nil {
			o.Readiness = inForce
		}
		before := s
		s = status.Next(before, o)
		if got := kstatus(generation, s); got != step.want {
			t.Errorf("%s: it is %s, want %s: %+v", step.what, got, step.want, s.Conditions)
		}
		extra := ""
		for _, c := range s.Conditions[min(4, len(s.Conditions)):] {
			extra += c.Type + " " + c.Reason
			if c.Status != metav1.ConditionTrue || c.Message == "" || c.ObservedGeneration != generation || c.LastTransitionTime.IsZero() {
				t.Errorf("%s: the condition is %+v", step.what, c)
			}
		}
		if extra != step.extra {
			t.Errorf("%s: beside the four conditions, it has %q, want %q", step.what, extra, step.extra)
		}
		if again := status.Next(s, o); !status.Equal(s, again) {
			t.Errorf("%s: there is something to write although nothing is new: %+v and %+v", step.what, s, again)
		}
	}
}

// The time of Reconciling is that of the rollout, not of its last step.
func TestReconcilingKeepsItsTime(t *testing.T) {
	var s appsv1beta1.SidecarSetStatus
	for minute := range 3 {
		s = status.Next(s, status.Observation{
			Generation: 1, Now: start.Add(time.Duration(minute) * time.Minute), Counters: tally.Counters{Matched: 5, Updated: int32(minute)},
			Rollout: &status.Rollout{Waiting: 5, Moved: start},
		})
	}
	c := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionReconciling)
	if c == nil || !c.LastTransitionTime.Time.Equal(start.Truncate(time.Second)) {
		t.Errorf("the condition is %+v, want one since %s", c, start)
	}
}
