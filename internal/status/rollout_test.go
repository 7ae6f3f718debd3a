package status_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/status"
	"github.com/sidecarset/operator/internal/tally"
)

func blocked(reason inplace.Reason, pods int32, first ...string) []appsv1beta1.SidecarSetPodGroup {
	return []appsv1beta1.SidecarSetPodGroup{{Reason: string(reason), Pods: pods, First: first}}
}

func TestNextSaysHowFarPodsHaveFollowed(t *testing.T) {
	of := func(matched, updated int32) tally.Counters { return tally.Counters{Matched: matched, Updated: updated} }
	failing := []appsv1beta1.SidecarSetPodGroup{{Reason: "ImagePullBackOff", Pods: 2, First: []string{"shop/web-1"}}}
	ago := func(d time.Duration) time.Time { return start.Add(-d) }
	tests := map[string]struct {
		seen                  status.Observation
		progressing, degraded string // status and reason
		says                  string // in the message of Progressing, or of a true Degraded
	}{
		"no Pods at all": {status.Observation{Rollout: &status.Rollout{}},
			"False Complete", "False AsExpected", "All 0"},
		"all Pods are updated": {status.Observation{Counters: of(5, 5), Rollout: &status.Rollout{Keep: 2}},
			"False Complete", "False AsExpected", "All 5"},
		"the last Pod is not back": {status.Observation{Counters: of(5, 5), Rollout: &status.Rollout{InFlight: 1, Moved: start}},
			"True RollingOut", "False AsExpected", "1 Pods are being updated"},
		"a failed replacement takes the whole budget": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{Waiting: 3, Stuck: 1, Moved: start}},
			"False Stalled", "True Stalled", "replacements of 1 evicted Pods"},
		"Pods wait for their turn": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{InFlight: 1, Waiting: 3, Moved: ago(5 * time.Minute)}},
			"True RollingOut", "False AsExpected", "2 of 5"},
		"Pods wait and the budget is 0": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{Waiting: 3, Moved: ago(time.Hour)}},
			"True RollingOut", "False AsExpected", "2 of 5"},
		"running Pods are left alone": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{NotUpdate: true}, Blocked: blocked(inplace.Refused, 3)},
			"False NotUpdate", "False AsExpected", "NotUpdate"},
		"paused": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{Paused: true, InFlight: 1, Waiting: 2, Moved: start}},
			"False Paused", "False AsExpected", "updateStrategy.paused is true: 3 Pods are still to be updated"},
		"maxUnavailable is 0": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{NoneAllowed: true, Waiting: 3}},
			"False Paused", "False AsExpected", "updateStrategy.maxUnavailable allows no Pod"},
		"paused and done": {status.Observation{Counters: of(5, 5), Rollout: &status.Rollout{Paused: true}},
			"False Complete", "False AsExpected", ""},
		"the partition keeps the rest": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{Keep: 3}},
			"False PartitionReached", "False AsExpected", "2 of 5"},
		"the selector leaves out the rest": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{Unselected: 3}},
			"False PartitionReached", "False AsExpected", "2 of 5"},
		"the partition keeps those that cannot follow": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{Keep: 3}, Blocked: blocked(inplace.Refused, 3)},
			"False PartitionReached", "False AsExpected", ""},
		"Pods run to completion": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{}, Blocked: append(blocked(inplace.RunToCompletion, 1), blocked(recreate.ControlledByJob, 2)...)},
			"False PodsBlocked", "False AsExpected", ""},
		"an update cannot be computed": {status.Observation{Counters: of(5, 4), Rollout: &status.Rollout{}, Blocked: blocked(inplace.UpdateImpossible, 1)},
			"False PodsBlocked", "True PodsBlocked", "1 UpdateImpossible"},
		"the content cannot be recorded": {status.Observation{Counters: of(5, 5), Rollout: &status.Rollout{}, Unrecorded: errors.New("exceeded quota")},
			"False Complete", "True RevisionNotRecorded", "exceeded quota"},
		"it cannot be recorded, and recreation has stopped": {status.Observation{Counters: of(5, 5), Rollout: &status.Rollout{Stopped: "Three failed."}, Unrecorded: errors.New("exceeded quota")},
			"False Stalled", "True RecreationStopped", "Three failed"},
		"Pods cannot follow": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{}, Blocked: blocked(inplace.ImmutableFieldChanged, 3)},
			"False PodsBlocked", "True PodsBlocked", "3 ImmutableFieldChanged"},
		"some cannot, and others are under way": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{Waiting: 2}, Blocked: blocked(inplace.Refused, 1)},
			"True RollingOut", "True PodsBlocked", "1 Refused"},
		"what passes by itself needs no user": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{}, Blocked: append(blocked(inplace.RunToCompletion, 2), blocked(inplace.ResizeDeferred, 1)...)},
			"False PodsBlocked", "False AsExpected", "2 RunToCompletion"},
		"stalled, not known why": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{InFlight: 2, Waiting: 3, Moved: ago(10 * time.Minute)}},
			"False Stalled", "True Stalled", "2 Pods did not become ready"},
		"long grace periods are no stall": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{InFlight: 2, Settling: 2, FirstBatch: true, Waiting: 3, Moved: ago(time.Hour)}},
			"True RollingOut", "False AsExpected", ""},
		"one of two only settles": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{InFlight: 3, Settling: 1, Waiting: 3, Failing: failing, Moved: ago(time.Minute)}},
			"False Stalled", "True Stalled", "2 Pods did not become ready"},
		"the selector leaves out what is down": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{InFlight: 1, Unrepaired: 1, Unselected: 1, Waiting: 2, Moved: ago(time.Hour)}},
			"False Stalled", "True Stalled", "excludes 1 of them"},
		"not stalled yet": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{InFlight: 3, Waiting: 3, Failing: failing, Moved: ago(9 * time.Minute)}},
			"True RollingOut", "False AsExpected", ""},
		"every Pod in flight fails": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{InFlight: 2, Waiting: 3, Failing: failing, Moved: ago(time.Minute)}},
			"False Stalled", "True Stalled", "2 ImagePullBackOff (shop/web-1)"},
		"the first batch fails": {status.Observation{Counters: of(5, 0), Rollout: &status.Rollout{InFlight: 2, Waiting: 3, FirstBatch: true, Failing: failing, Moved: ago(time.Minute)}},
			"False Stalled", "True FirstBatchNotReady", "The other Pods wait"},
		"the strategy is not understood": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{Problem: errors.New("spec.updateStrategy.partition is odd")}},
			"False InvalidSpec", "True InvalidSpec", "partition is odd"},
		"the first batch is not ready for another reason": {status.Observation{Counters: of(5, 1), Rollout: &status.Rollout{Waiting: 4, FirstBatch: true, Moved: ago(11 * time.Minute)}},
			"False Stalled", "True FirstBatchNotReady", "The other Pods wait"},
		"a Pod is being written": {status.Observation{Counters: of(5, 4), Rollout: &status.Rollout{Writing: 1}},
			"True RollingOut", "False AsExpected", "4 of 5"},
		"stopped": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{Waiting: 3, Stopped: "Three replacements did not become Ready."}},
			"False Stalled", "True RecreationStopped", "Three replacements"},
		"stopped, and some are not back": {status.Observation{Counters: of(5, 2), Rollout: &status.Rollout{Waiting: 3, InFlight: 1, Moved: start, Stopped: "Three replacements did not become Ready."}},
			"True RollingOut", "True RecreationStopped", "Three replacements"},
		"Pods without the SidecarSet are to be evicted": {status.Observation{Counters: of(2, 2), Rollout: &status.Rollout{Waiting: 3, Uninjected: 3}},
			"True RollingOut", "False AsExpected", "3 Pods are still to be updated"},
		"they cannot be": {status.Observation{Counters: of(2, 2), Rollout: &status.Rollout{Uninjected: 3}, Blocked: []appsv1beta1.SidecarSetPodGroup{{Reason: "EvictionRefused", Pods: 3}}},
			"False PodsBlocked", "True PodsBlocked", "3 EvictionRefused"},
		"replacements failed, and none is outdated": {status.Observation{Counters: of(3, 3), Rollout: &status.Rollout{Stopped: "Three replacements did not become Ready."}},
			"False Stalled", "True RecreationStopped", "Three replacements"},
		"of no use": {status.Observation{Counters: of(5, 2), Problem: errors.New("x"), Rollout: &status.Rollout{}},
			"False InvalidSpec", "True InvalidSpec", "Accepted"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.seen.Now, tc.seen.Generation = start, 7
			conditions := status.Next(appsv1beta1.SidecarSetStatus{}, tc.seen).Conditions
			said := ""
			for kind, want := range map[string]string{appsv1beta1.ConditionProgressing: tc.progressing, appsv1beta1.ConditionDegraded: tc.degraded} {
				c := meta.FindStatusCondition(conditions, kind)
				if got := string(c.Status) + " " + c.Reason; got != want || c.ObservedGeneration != 7 {
					t.Errorf("%s is %s of generation %d, want %s of 7: %s", kind, got, c.ObservedGeneration, want, c.Message)
				}
				if kind == appsv1beta1.ConditionProgressing || c.Status == metav1.ConditionTrue {
					said += c.Message
				}
			}
			if !strings.Contains(said, tc.says) {
				t.Errorf("it says %q, want %q in it", said, tc.says)
			}
		})
	}
}

func TestNextKeepsConditionsWhileTheRolloutIsUnknown(t *testing.T) {
	before := []metav1.Condition{{Type: appsv1beta1.ConditionProgressing, Status: metav1.ConditionTrue, Reason: appsv1beta1.ReasonRollingOut}}
	after := status.Next(appsv1beta1.SidecarSetStatus{Conditions: before}, status.Observation{Generation: 2, Now: start}).Conditions
	if got := *meta.FindStatusCondition(after, appsv1beta1.ConditionProgressing); got != before[0] {
		t.Errorf("Progressing became %+v", got)
	}
	if got := meta.FindStatusCondition(after, appsv1beta1.ConditionDegraded); got != nil {
		t.Errorf("Degraded became %+v", got)
	}
}

// Whatever numbers change, the transition time is that of the condition's status.
func TestTransitionTimesAreThoseOfTheStatus(t *testing.T) {
	seen := func(updated int32, after time.Duration) status.Observation {
		return status.Observation{Generation: 1, Counters: tally.Counters{Matched: 3, Updated: updated},
			Rollout: &status.Rollout{Waiting: 3 - updated}, Now: start.Add(after)}
	}
	at := func(s appsv1beta1.SidecarSetStatus) time.Time {
		return meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionProgressing).LastTransitionTime.Time
	}
	first := status.Next(appsv1beta1.SidecarSetStatus{}, seen(0, 0))
	second := status.Next(first, seen(2, time.Minute))
	third := status.Next(second, seen(3, time.Hour))
	if !at(first).Equal(at(second)) {
		t.Errorf("still RollingOut, and the time moved from %s to %s", at(first), at(second))
	}
	if want := start.Add(time.Hour).Truncate(time.Second); !at(third).Equal(want) {
		t.Errorf("complete at %s, want %s", at(third), want)
	}
}

func TestProgressIsWhatMovesARollout(t *testing.T) {
	seen := func(updated, inFlight, ready int32, minute int) status.Observation {
		return status.Observation{Generation: 1, Counters: tally.Counters{Updated: updated, Ready: ready},
			Rollout: &status.Rollout{InFlight: inFlight}, Now: start.Add(time.Duration(minute) * time.Minute)}
	}
	var p status.Progress
	for i, tc := range []struct {
		seen   status.Observation
		minute int
	}{
		{seen(0, 1, 3, 0), 0},
		{seen(0, 1, 3, 1), 0},
		{seen(0, 1, 2, 2), 0}, // readiness is no progress
		{seen(1, 1, 2, 3), 3},
		{seen(1, 0, 2, 4), 4},
		{seen(1, 0, 2, 9), 4},
		{seen(1, 0, 2, 2), 2}, // the clock was set back
	} {
		if got, want := p.Observe(tc.seen, appsv1beta1.SidecarSetStatus{}), start.Add(time.Duration(tc.minute)*time.Minute); !got.Equal(want) {
			t.Errorf("step %d: moved at %s, want %s", i, got, want)
		}
	}
}

func TestRolloutOfReadsAReport(t *testing.T) {
	problem := errors.New("x")
	failing := []appsv1beta1.SidecarSetPodGroup{{Reason: "ErrImagePull", Pods: 1}}
	got := status.RolloutOf(rollout.Report{
		Outdated: 20, Partition: 5, Waiting: 9, Kept: 4, Taken: 2, Used: 3, Allowed: 4, InTransition: 1, Unselected: 7, Limit: rollout.FirstBatch, Problem: problem,
		Blocked: []appsv1beta1.SidecarSetPodGroup{{Reason: string(recreate.DisruptionBudget), Pods: 2}, {Reason: string(recreate.Evicted), Pods: 1}, {Reason: "Other", Pods: 1}},
	}, failing, tally.Recreation{Failed: 1, Uninjected: 8})
	want := &status.Rollout{Waiting: 7, Writing: 3, InFlight: 2, Keep: 5, Unselected: 7, Uninjected: 8, FirstBatch: true, Failing: failing, Problem: problem}
	if diff := cmp.Diff(want, got, cmpopts.EquateErrors()); diff != "" {
		t.Errorf("rollout (-want +got):\n%s", diff)
	}
	for limit, of := range map[rollout.Limit]func(*status.Rollout) bool{
		rollout.NotUpdate: func(r *status.Rollout) bool { return r.NotUpdate },
		rollout.Paused:    func(r *status.Rollout) bool { return r.Paused },
		rollout.Budget:    func(r *status.Rollout) bool { return r.NoneAllowed }, // maxUnavailable is 0
	} {
		if !of(status.RolloutOf(rollout.Report{Limit: limit}, nil, tally.Recreation{})) {
			t.Errorf("the limit %s is not seen", limit)
		}
	}
}

func TestBlockedByLeavesOutEvictedPods(t *testing.T) {
	want := []appsv1beta1.SidecarSetPodGroup{{Reason: "Refused", Pods: 4, First: []string{"shop/a", "shop/b"}, Message: "denied"}}
	got := status.BlockedBy(rollout.Report{Blocked: append(blocked(recreate.Evicted, 1), want...)})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("blocked Pods (-want +got):\n%s", diff)
	}
}

// A new leader continues to report a rollout as stalled, unless it has made progress
// meanwhile.
func TestAStalledRolloutStaysStalledUnderANewLeader(t *testing.T) {
	seen := status.Observation{Generation: 2, Now: start, Counters: tally.Counters{Matched: 5, Updated: 2}, Rollout: &status.Rollout{InFlight: 1, Waiting: 3}}
	stored := func(generation int64, updated int32, reason string) appsv1beta1.SidecarSetStatus {
		return appsv1beta1.SidecarSetStatus{UpdatedPods: updated, Conditions: []metav1.Condition{{
			Type: appsv1beta1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: reason, ObservedGeneration: generation,
		}}}
	}
	for name, tc := range map[string]struct {
		stored appsv1beta1.SidecarSetStatus
		want   string
	}{
		"it was stalled":                {stored(2, 2, appsv1beta1.ReasonStalled), appsv1beta1.ReasonStalled},
		"it was stalled, and moved":     {stored(2, 1, appsv1beta1.ReasonStalled), appsv1beta1.ReasonRollingOut},
		"another one was stalled":       {stored(1, 2, appsv1beta1.ReasonStalled), appsv1beta1.ReasonRollingOut},
		"it was under way":              {stored(2, 2, appsv1beta1.ReasonRollingOut), appsv1beta1.ReasonRollingOut},
		"nothing was said of it so far": {appsv1beta1.SidecarSetStatus{}, appsv1beta1.ReasonRollingOut},
	} {
		t.Run(name, func(t *testing.T) {
			var p status.Progress
			o, rollout := seen, *seen.Rollout
			rollout.Moved = p.Observe(o, tc.stored)
			o.Rollout = &rollout
			c := meta.FindStatusCondition(status.Next(tc.stored, o).Conditions, appsv1beta1.ConditionProgressing)
			if c.Reason != tc.want {
				t.Errorf("Progressing is %s, want %s", c.Reason, tc.want)
			}
		})
	}
}

// With a budget of one, the first failure ends the rollout. The status says so at once,
// because the replacement had ten minutes.
func TestAFailedReplacementThatTakesTheBudgetStallsTheRollout(t *testing.T) {
	for used, want := range map[int]int32{1: 1, 2: 0} { // of which one has failed
		report := rollout.Report{Used: used, Allowed: used, Waiting: 5, Limit: rollout.Budget}
		if got := status.RolloutOf(report, nil, tally.Recreation{Failed: 1}).Stuck; got != want {
			t.Errorf("%d of %d places are taken: %d are stuck, want %d", used, used, got, want)
		}
	}
}
