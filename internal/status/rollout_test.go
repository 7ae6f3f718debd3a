package status_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/status"
	"github.com/sidecarset/operator/test/health"
)

func of(matched, updated int32) status.Counters {
	return status.Counters{Matched: matched, Updated: updated}
}

func ago(d time.Duration) time.Time { return start.Add(-d) }

func group(reason string, pods int32, first ...string) []appsv1beta1.SidecarSetPodGroup {
	return []appsv1beta1.SidecarSetPodGroup{{Reason: reason, Pods: pods, First: first}}
}

// counting is a rollout in which two Pods of shop count and three wait.
func counting(moved time.Duration, reason string, failed int, change func(*rollout.Report)) *rollout.Report {
	r := &rollout.Report{Outdated: 3, Waiting: 3, Used: 2, Allowed: 2, Limit: rollout.Budget, Failed: failed, Moved: ago(moved), Slack: time.Minute,
		Counting: group(reason, 2, "shop/web-1", "shop/web-2")}
	if change != nil {
		change(r)
	}
	return r
}

// failing is a rollout in which all Pods that count have failed since.
func failing(since time.Duration, r *rollout.Report) *rollout.Report {
	r.Failing, r.FailingSince = true, ago(since)
	return r
}

func report(r rollout.Report) *rollout.Report { r.Moved = ago(time.Hour); return &r }

// Each row is a state of a SidecarSet: what the conditions say of it, and what kstatus and the
// health check for Argo CD make of them.
func TestStates(t *testing.T) {
	const minute = time.Minute
	noChange := func(limit rollout.Limit, allowed int) func(*rollout.Report) {
		return func(r *rollout.Report) { r.Limit, r.Allowed = limit, allowed }
	}
	last := func(r *rollout.Report) { r.Outdated, r.Waiting, r.Limit = 0, 0, rollout.Unlimited }
	refused := group("Refused", 3, "shop/web-1")
	for name, tc := range map[string]struct {
		seen                            status.Observation
		progressing, degraded, k8s, cdr string
		says                            string // in the message of Progressing, or of a true Degraded
	}{
		"no Pods":         {status.Observation{Rollout: report(rollout.Report{})}, "Complete", "AsExpected", "Current", "Healthy", "All 0"},
		"all are updated": {status.Observation{Counters: of(5, 5), Rollout: report(rollout.Report{Partition: 2})}, "Complete", "AsExpected", "Current", "Healthy", "All 5"},
		"all are updated, and some are not injected": {status.Observation{Counters: status.Counters{Matched: 5, Updated: 5, Uninjected: 2}, Rollout: report(rollout.Report{})},
			"PodsBlocked", "AsExpected", "Current", "Healthy", "All 5 matched Pods are updated. 2 selected Pods were not injected"},
		"a node ignores the update": {status.Observation{Counters: of(5, 5), Rollout: report(rollout.Report{Blocked: group("NotCarriedOut", 1)})},
			"PodsBlocked", "PodsBlocked", "Current", "Degraded", "1 NotCarriedOut"},
		"the last Pod is not back": {status.Observation{Counters: of(5, 5), Rollout: counting(9*minute, "Starting", 0, last)},
			"RollingOut", "AsExpected", "Current", "Progressing", "2 Pods are being updated"},
		"a Pod is being written":   {status.Observation{Counters: of(5, 4), Rollout: report(rollout.Report{Outdated: 1, Taken: 1})}, "RollingOut", "AsExpected", "Current", "Progressing", "4 of 5"},
		"a replacement is missing": {status.Observation{Counters: of(5, 5), Rollout: report(rollout.Report{Replaced: 1})}, "RollingOut", "AsExpected", "Current", "Progressing", ""},
		"Pods wait":                {status.Observation{Counters: of(5, 2), Rollout: counting(10*minute, "Starting", 0, nil)}, "RollingOut", "AsExpected", "Current", "Progressing", "2 of 5"},
		"Pods wait for a PodDisruptionBudget": {status.Observation{Counters: of(5, 2), Rollout: report(rollout.Report{Outdated: 3, Blocked: group("DisruptionBudget", 3)})},
			"RollingOut", "AsExpected", "Current", "Progressing", ""},
		"one of two fails": {status.Observation{Counters: of(5, 2), Rollout: counting(2*minute, "ImagePullBackOff", 1, nil)}, "RollingOut", "AsExpected", "Current", "Progressing", ""},
		"all fail, for seconds": {status.Observation{Counters: of(5, 2), Rollout: failing(59*time.Second, counting(5*minute, "ImagePullBackOff", 2, nil))},
			"RollingOut", "AsExpected", "Current", "Progressing", ""},
		"all fail": {status.Observation{Counters: of(5, 2), Rollout: failing(minute, counting(minute, "ImagePullBackOff", 2, nil))},
			"Stalled", "Stalled", "Failed", "Degraded", "2 updated or replaced Pods are not Ready: 2 ImagePullBackOff (shop/web-1)."},
		"nothing moves": {status.Observation{Counters: of(5, 2), Rollout: counting(11*minute, "NotAcknowledged", 0, nil)},
			"Stalled", "Stalled", "Failed", "Degraded", "2 NotAcknowledged (shop/web-1)."},
		"a startup probe": {status.Observation{Counters: of(5, 2), Rollout: counting(11*minute, "StartupProbe", 0, nil)},
			"Stalled", "Stalled", "Failed", "Degraded", "the kubelet acts on no further change"},
		"the place of a deleted Pod": {status.Observation{Counters: of(5, 2), Rollout: counting(11*minute, "ReplacementNotReady", 0, nil)},
			"Stalled", "Stalled", "Failed", "Degraded", "2 ReplacementNotReady (shop/web-1). The places of deleted and evicted Pods are kept"},
		"a long grace period": {status.Observation{Counters: of(5, 2), Rollout: counting(time.Hour, "Terminating", 0, func(r *rollout.Report) { r.Slack = time.Hour })},
			"RollingOut", "AsExpected", "Current", "Progressing", ""},
		"a canary does not come back": {status.Observation{Counters: of(5, 2), Rollout: failing(time.Hour, counting(time.Hour, "CrashLoopBackOff", 2, func(r *rollout.Report) { r.Kept, r.Partition = 3, 3 }))},
			"Stalled", "PodsNotReady", "Failed", "Degraded", "shop/web-1"},
		"a Pod breaks at the end": {status.Observation{Counters: of(5, 5), Rollout: failing(minute, counting(time.Hour, "NotReady", 2, last))},
			"Stalled", "PodsNotReady", "Failed", "Degraded", "2 NotReady (shop/web-1)"},
		"readiness alternates": {status.Observation{Counters: of(5, 2), Rollout: report(rollout.Report{Outdated: 3, Waiting: 3, Limit: rollout.Proof})},
			"Stalled", "Stalled", "Failed", "Degraded", "min-ready-seconds"},
		"an app is down for its own reasons": {status.Observation{Counters: of(5, 2), Rollout: report(rollout.Report{Outdated: 3, Waiting: 3, Limit: rollout.Share})},
			"RollingOut", "AsExpected", "Current", "Progressing", "their controllers"},
		"a replacement is not Ready": {status.Observation{Counters: of(5, 2), Rollout: report(rollout.Report{Outdated: 3, Waiting: 3, Used: 1, Replaced: 1, Allowed: 1, Limit: rollout.Budget})},
			"Stalled", "Stalled", "Failed", "Degraded", "1 updated or replaced Pods are not Ready"},
		"evictions wait": {status.Observation{Counters: of(5, 2), Rollout: &rollout.Report{Outdated: 3, EvictionsWait: "three new Pods are missing.", Moved: ago(minute)}},
			"RollingOut", "AsExpected", "Current", "Progressing", "No Pod is evicted now: three"},
		"paused":          {status.Observation{Counters: of(5, 2), Rollout: report(rollout.Report{Outdated: 3, Waiting: 3, Limit: rollout.Paused})}, "Paused", "AsExpected", "Current", "Suspended", "paused is true: 2 of 5"},
		"paused and done": {status.Observation{Counters: of(5, 5), Rollout: report(rollout.Report{Limit: rollout.Paused})}, "Complete", "AsExpected", "Current", "Healthy", ""},
		"paused while a Pod is restarted": {status.Observation{Counters: of(5, 2), Rollout: counting(minute, "Starting", 0, noChange(rollout.Paused, 2))},
			"Paused", "AsExpected", "Current", "Suspended", "2 Pods are being updated"},
		"paused while Pods are broken": {status.Observation{Counters: of(5, 2), Rollout: failing(time.Hour, counting(time.Second, "NotReady", 2, noChange(rollout.Paused, 2)))},
			"Paused", "PodsNotReady", "Failed", "Degraded", "not repaired, because updateStrategy.paused is true"},
		"paused while Pods do not come back": {status.Observation{Counters: of(5, 2), Rollout: counting(2*minute, "Starting", 0, noChange(rollout.Paused, 2))}, "Paused", "PodsNotReady", "Failed", "Degraded", ""},
		"maxUnavailable is 0":                {status.Observation{Counters: of(5, 2), Rollout: report(rollout.Report{Outdated: 3, Waiting: 3, Limit: rollout.Budget})}, "Paused", "AsExpected", "Current", "Suspended", "maxUnavailable allows no Pod"},
		"maxUnavailable is 0, and Pods are broken": {status.Observation{Counters: of(5, 2), Rollout: counting(time.Hour, "NotReady", 2, noChange(rollout.Budget, 0))},
			"Paused", "PodsNotReady", "Failed", "Degraded", "shop/web-1"},
		"NotUpdate": {status.Observation{Counters: of(5, 2), Rollout: report(rollout.Report{Limit: rollout.NotUpdate, Blocked: refused})}, "NotUpdate", "AsExpected", "Current", "Healthy", "NotUpdate"},
		"the partition keeps the rest": {status.Observation{Counters: of(5, 2), Rollout: report(rollout.Report{Outdated: 3, Partition: 3, Blocked: refused})},
			"PartitionReached", "AsExpected", "Current", "Healthy", "2 of 5"},
		"the selector keeps the rest": {status.Observation{Counters: of(5, 2), Rollout: report(rollout.Report{Outdated: 3, Unselected: 3})}, "PartitionReached", "AsExpected", "Current", "Healthy", "2 of 5"},
		"Pods run to completion":      {status.Observation{Counters: of(5, 2), Rollout: report(rollout.Report{Outdated: 3, Blocked: group("RunToCompletion", 3)})}, "PodsBlocked", "AsExpected", "Current", "Healthy", "3 RunToCompletion"},
		"Pods cannot follow":          {status.Observation{Counters: of(5, 2), Rollout: report(rollout.Report{Outdated: 3, Blocked: refused})}, "PodsBlocked", "PodsBlocked", "Current", "Degraded", "3 Refused"},
		"some cannot follow": {status.Observation{Counters: of(5, 0), Rollout: report(rollout.Report{Outdated: 5, Waiting: 2, Limit: rollout.Refusals, Blocked: refused})},
			"RollingOut", "PodsBlocked", "Current", "Degraded", "one Pod at a time"},
		"the content cannot be recorded": {status.Observation{Counters: of(5, 5), Rollout: report(rollout.Report{}), Unrecorded: errors.New("exceeded quota")},
			"Complete", "RevisionNotRecorded", "Failed", "Degraded", "exceeded quota"},
		"the strategy is not understood": {status.Observation{Counters: of(5, 2), Rollout: report(rollout.Report{Outdated: 3, Limit: rollout.Invalid, Problem: errors.New("partition is odd")})},
			"InvalidSpec", "InvalidSpec", "Failed", "Degraded", "partition is odd"},
		"of no use": {status.Observation{Problem: errors.New("x"), Rollout: &rollout.Report{}}, "InvalidSpec", "InvalidSpec", "Failed", "Degraded", "Accepted"},
		"not in force yet": {status.Observation{Readiness: &status.Readiness{Reason: appsv1beta1.ReasonNotInForce, Message: "Not yet."}, Rollout: &rollout.Report{}},
			"Complete", "AsExpected", "InProgress", "Progressing", ""},
		"not in force until a user acts": {status.Observation{Readiness: &status.Readiness{Reason: appsv1beta1.ReasonEntryMissing, Message: "Apply it."}, Rollout: &rollout.Report{}},
			"Complete", "AsExpected", "InProgress", "Progressing", ""},
		"injection is paused": {status.Observation{InjectionPaused: true, Rollout: &rollout.Report{}}, "Complete", "AsExpected", "Current", "Suspended", ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := tc.seen
			o.Now, o.Generation = start, 7
			if o.Readiness == nil {
				o.Readiness = &status.Readiness{Ready: true, Reason: appsv1beta1.ReasonReady, Message: "In force."}
			}
			s := status.Next(appsv1beta1.SidecarSetStatus{}, o)
			said := ""
			for kind, want := range map[string]string{appsv1beta1.ConditionProgressing: tc.progressing, appsv1beta1.ConditionDegraded: tc.degraded} {
				c := meta.FindStatusCondition(s.Conditions, kind)
				if c.Reason != want {
					t.Errorf("%s is %s, want %s: %s", kind, c.Reason, want, c.Message)
				}
				if kind == appsv1beta1.ConditionProgressing || c.Status == metav1.ConditionTrue {
					said += c.Message
				}
			}
			if !strings.Contains(said, tc.says) {
				t.Errorf("it says %q, want %q in it", said, tc.says)
			}
			var history fixtures.ConditionHistory
			if broken := history.Add(7, s, start); len(broken) > 0 {
				t.Error(strings.Join(broken, "\n"))
			}
			if again := status.Next(s, o); !status.Equal(s, again) {
				t.Errorf("there is something to write although nothing is new: %+v and %+v", s, again)
			}
			object := asObject(t, s, o.InjectionPaused)
			if got := read(t, object, health.Kstatus); got != tc.k8s {
				t.Errorf("kstatus says %s, want %s: %+v", got, tc.k8s, s.Conditions)
			}
			if got := read(t, object, health.Argo); got != tc.cdr {
				t.Errorf("the health check says %s, want %s: %+v", got, tc.cdr, s.Conditions)
			}
		})
	}
}

// StallsIn is when Stalled begins, to the nanosecond.
func TestStallsIn(t *testing.T) {
	for name, tc := range map[string]struct {
		r    *rollout.Report
		want time.Duration // 0: never
	}{
		"nothing counts":  {report(rollout.Report{Outdated: 1, Waiting: 1}), 0},
		"Pods start":      {counting(4*time.Minute, "Starting", 0, nil), 7 * time.Minute},
		"all fail":        {failing(20*time.Second, counting(5*time.Minute, "ImagePullBackOff", 2, nil)), 40 * time.Second},
		"all fail anew":   {failing(time.Hour, counting(10*time.Second, "ImagePullBackOff", 2, nil)), 50 * time.Second},
		"paused":          {counting(0, "Starting", 0, func(r *rollout.Report) { r.Limit = rollout.Paused }), 2 * time.Minute},
		"already stalled": {counting(time.Hour, "Starting", 0, nil), 0},
	} {
		o := status.Observation{Generation: 1, Now: start, Rollout: tc.r}
		in, ok := o.StallsIn()
		if ok != (tc.want > 0) || ok && in != tc.want {
			t.Errorf("%s: in %v, %v, want %v", name, in, ok, tc.want)
		}
		if !ok {
			continue
		}
		for at, want := range map[time.Duration]bool{in - 1: false, in: true} {
			o.Now = start.Add(at)
			if got := meta.IsStatusConditionTrue(status.Next(appsv1beta1.SidecarSetStatus{}, o).Conditions, appsv1beta1.ConditionDegraded); got != want {
				t.Errorf("%s: degraded after %v is %v", name, at, got)
			}
		}
	}
}

// A new leader continues to report a rollout as stalled until it sees progress.
func TestAStalledRolloutStaysStalledUnderANewLeader(t *testing.T) {
	begun := func(r *rollout.Report) { r.Begun = true }
	for name, tc := range map[string]struct {
		reason     string
		generation int64
		seen       *rollout.Report
		want       string
	}{
		"it was stalled":             {"Stalled", 2, counting(0, "Starting", 0, begun), "Stalled"},
		"it was stalled, and moves":  {"Stalled", 2, counting(0, "Starting", 0, nil), "RollingOut"},
		"its Pods are back":          {"Stalled", 2, &rollout.Report{Outdated: 1, Waiting: 1, Begun: true}, "RollingOut"},
		"another one was stalled":    {"Stalled", 1, counting(0, "Starting", 0, begun), "RollingOut"},
		"it was under way":           {"RollingOut", 2, counting(0, "Starting", 0, begun), "RollingOut"},
		"nothing was said of it yet": {"", 2, counting(0, "Starting", 0, begun), "RollingOut"},
	} {
		stored := appsv1beta1.SidecarSetStatus{Conditions: []metav1.Condition{{
			Type: appsv1beta1.ConditionProgressing, Status: metav1.ConditionFalse, Reason: tc.reason, ObservedGeneration: tc.generation,
		}}}
		s := status.Next(stored, status.Observation{Generation: 2, Now: start, Counters: of(5, 2), Rollout: tc.seen})
		if c := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionProgressing); c.Reason != tc.want {
			t.Errorf("%s: Progressing is %s, want %s", name, c.Reason, tc.want)
		}
	}
}

// Reasons of the kubelet and names are text of others. What is to be said about them is not
// displaced by them, and stays in the message.
func TestMessagesHaveRoomForWhatTheySay(t *testing.T) {
	long := strings.Repeat("ü", 300)
	r := counting(time.Hour, "ReplacementNotReady", 0, func(r *rollout.Report) {
		r.Counting = append(group("StartupProbe", 1, long), append(group("ReplacementNotReady", 1, long), append(group(long, 1, long), group("NotReady", 1, long)...)...)...)
		r.Limit = rollout.Paused
	})
	s := status.Next(appsv1beta1.SidecarSetStatus{}, status.Observation{Generation: 1, Now: start, Rollout: r})
	c := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionDegraded)
	if !strings.HasSuffix(c.Message, "They are not repaired, because updateStrategy.paused is true.") {
		t.Errorf("the message of %d bytes is %q", len(c.Message), c.Message)
	}
}
