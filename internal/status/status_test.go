package status_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/status"
)

var (
	start = time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	count = status.Counters{Matched: 5, Updated: 4, Ready: 3, UpdatedReady: 2, Uninjected: 1}
)

func TestNextTakesTheCountersAndTheirGeneration(t *testing.T) {
	previous := appsv1beta1.SidecarSetStatus{
		ObservedGeneration: 9, LatestRevision: "log-1", CollisionCount: new(int32(2)), NotReadyBefore: new(int32(3)),
		Revisions:  []appsv1beta1.SidecarSetRevisionPods{{Name: "log-1", Pods: 3, ReadyPods: 2}, {Pods: 1}},
		Conditions: []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue}},
	}
	want := previous
	want.ObservedGeneration, want.MatchedPods, want.UpdatedPods, want.ReadyPods, want.UpdatedReadyPods, want.UninjectedPods = 7, 5, 4, 3, 2, 1
	want.Conditions = append(want.Conditions, metav1.Condition{
		Type: appsv1beta1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: appsv1beta1.ReasonAccepted,
		Message: "The operator uses this SidecarSet.", ObservedGeneration: 7, LastTransitionTime: metav1.NewTime(start.Truncate(time.Second)),
	})
	got := status.Next(previous, status.Observation{Generation: 7, Counters: count, Now: start, Revisions: []appsv1beta1.SidecarSetRevisionPods{{Pods: 9}}})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status without a revision (-want +got):\n%s", diff)
	}
	if len(previous.Conditions) != 1 {
		t.Error("the previous status was changed")
	}
}

func TestNextNamesTheRevision(t *testing.T) {
	previous := appsv1beta1.SidecarSetStatus{LatestRevision: "log-1"}
	for _, name := range []string{"log-1", "log-2"} {
		got := status.Next(previous, status.Observation{Revision: &status.Revision{Name: name}, Now: start})
		if got.LatestRevision != name || got.CollisionCount == nil || *got.CollisionCount != 0 {
			t.Errorf("%s: status = %+v", name, got)
		}
	}
}

func TestNextNamesPodsAndRevisions(t *testing.T) {
	names := []string{"a/1", "a/2", "a/3", "b/4"}
	long := "payments-" + strings.Repeat("x", 240) + "-6f84bc646f"
	group := func(reason string, pods int32) appsv1beta1.SidecarSetPodGroup {
		return appsv1beta1.SidecarSetPodGroup{Reason: reason, Pods: pods, First: names[:min(len(names), int(pods))]}
	}
	o := status.Observation{Now: start, Revision: &status.Revision{},
		Uninjected: []appsv1beta1.SidecarSetPodGroup{group(appsv1beta1.ReasonSidecarsMissing, 0), group(appsv1beta1.ReasonOlderThanSidecarSet, 6)},
		Plan:       &rollout.Plan{Blocked: among("NodeTooOld", "", 5), NotRunning: among("ImagePullBackOff", "log", 4)},
		Revisions:  []appsv1beta1.SidecarSetRevisionPods{{Pods: 11, ReadyPods: 9}, {Name: long, Pods: 700, ReadyPods: 3}, {Name: "log-c"}},
	}
	o.Plan.Blocked.Add("WriteRejected", "\xff"+strings.Repeat("ü", 300), record(long))
	for i := range 12 {
		o.Revisions = append(o.Revisions, appsv1beta1.SidecarSetRevisionPods{Name: fmt.Sprint("log-", i), Pods: 100 - int32(i), ReadyPods: 1})
	}
	got := status.Next(appsv1beta1.SidecarSetStatus{}, o)
	want := []appsv1beta1.SidecarSetPodGroup{{Reason: appsv1beta1.ReasonOlderThanSidecarSet, Pods: 6, First: names[:3]}}
	if diff := cmp.Diff(want, got.Uninjected); diff != "" {
		t.Errorf("uninjected (-want +got):\n%s", diff)
	}
	want = []appsv1beta1.SidecarSetPodGroup{{Reason: "ImagePullBackOff", Message: "log", Pods: 4, First: []string{"shop/web-1", "shop/web-2", "shop/web-3"}}}
	if diff := cmp.Diff(want, got.NotRunningPods); diff != "" {
		t.Errorf("not running (-want +got):\n%s", diff)
	}
	refused, name := got.BlockedPods[1], got.Revisions[0].Name
	if got.BlockedPods[0].Reason != "NodeTooOld" || len(refused.Message) > 200 || !utf8.ValidString(refused.Message) || !strings.HasSuffix(refused.Message, "ü…") {
		t.Errorf("blocked Pods are %+v", got.BlockedPods)
	}
	for _, name := range []string{refused.First[0], name} {
		if len(name) != 200 || !strings.Contains(name, "payments-") || !strings.HasSuffix(name, "-6f84bc646f") || !utf8.ValidString(name) {
			t.Errorf("the long name is %q", name)
		}
	}
	if n := len(got.Revisions); n != 11 || got.Revisions[10] != (appsv1beta1.SidecarSetRevisionPods{Pods: 11 + 91 + 90 + 89, ReadyPods: 9 + 3}) {
		t.Errorf("revisions are %+v", got.Revisions)
	}
}

func TestPodsByRevision(t *testing.T) {
	recorded := func(name string) (int32, int32) {
		if name == "log-1" {
			return 3, 2
		}
		return 0, 0
	}
	got := status.ByRevision([]string{"log-2", "log-1"}, recorded, status.Counters{Matched: 7, Ready: 5})
	want := []appsv1beta1.SidecarSetRevisionPods{{Name: "log-2"}, {Name: "log-1", Pods: 3, ReadyPods: 2}, {Pods: 4, ReadyPods: 3}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Pods by revision (-want +got):\n%s", diff)
	}
}

func TestNextKeepsMessagesWithinTheSchema(t *testing.T) {
	problem := errors.New(strings.Repeat("ü", 40000))
	got := status.Next(appsv1beta1.SidecarSetStatus{}, status.Observation{Problem: problem}).Conditions[0]
	if got.Status != metav1.ConditionFalse || got.Reason != appsv1beta1.ReasonInvalid || len(got.Message) > 32768 || !utf8.ValidString(got.Message) {
		t.Errorf("%s %s, a message of %d bytes, valid %v", got.Status, got.Reason, len(got.Message), utf8.ValidString(got.Message))
	}
}

// Whatever numbers change, the time of transition is that of the condition's status.
func TestNextIsStable(t *testing.T) {
	seen := status.Observation{Generation: 1, Counters: count, Now: start, Plan: &rollout.Plan{Numbers: rollout.Numbers{Total: 5, Budget: 1, Outdated: 1}}, Since: start}
	first := status.Next(appsv1beta1.SidecarSetStatus{}, seen)
	for name, tc := range map[string]struct {
		change    func(*status.Observation)
		equal     bool
		condition string // whose time moves
	}{
		"the same later is nothing to write": {func(*status.Observation) {}, true, ""},
		"another count is":                   {func(o *status.Observation) { o.Counters.Updated = 3 }, false, ""},
		"another generation is":              {func(o *status.Observation) { o.Generation = 2 }, false, ""},
		"a problem is":                       {func(o *status.Observation) { o.Problem = errors.New("x") }, false, "Accepted Progressing Degraded"},
		"the end of a rollout is":            {func(o *status.Observation) { o.Counters, o.Plan = of(5, 5), &rollout.Plan{} }, false, "Progressing"},
		"nothing known of a rollout is not":  {func(o *status.Observation) { o.Plan = nil }, true, ""},
	} {
		o := seen
		o.Now = start.Add(time.Minute)
		tc.change(&o)
		next := status.Next(first, o)
		if got := status.Equal(first, next); got != tc.equal {
			t.Errorf("%s: Equal = %v", name, got)
		}
		for _, c := range first.Conditions {
			moved := !meta.FindStatusCondition(next.Conditions, c.Type).LastTransitionTime.Equal(&c.LastTransitionTime)
			if want := strings.Contains(tc.condition, c.Type); moved != want {
				t.Errorf("%s: the time of %s moved: %v", name, c.Type, moved)
			}
		}
	}
}

func TestNextSaysWhetherTheNextPodIsInjected(t *testing.T) {
	yes := &status.Readiness{Ready: true, Reason: appsv1beta1.ReasonInjecting}
	no := &status.Readiness{Reason: appsv1beta1.ReasonWebhookRejected}
	unsure := &status.Readiness{Reason: appsv1beta1.ReasonPending, Unsure: true}
	useless := errors.New("x")
	for name, tc := range map[string]struct {
		before int64 // the generation that was ready before; 0 for none
		next   status.Observation
		want   string // status, reason and generation of Ready, then Reconciling if it is there
	}{
		"nothing is known":                           {0, status.Observation{}, ""},
		"nothing new is known":                       {2, status.Observation{}, "True Injecting 2"},
		"nothing is known of this generation":        {1, status.Observation{}, "True Injecting 1 Reconciling"},
		"yes":                                        {0, status.Observation{Readiness: yes}, "True Injecting 2"},
		"no takes back a yes":                        {2, status.Observation{Readiness: no}, "False WebhookRejected 2"},
		"doubt does not":                             {2, status.Observation{Readiness: unsure}, "True Injecting 2"},
		"unless it is about another generation":      {1, status.Observation{Readiness: unsure}, "False Pending 2 Reconciling"},
		"what cannot be used is not ready":           {2, status.Observation{Problem: useless}, "False InvalidSpec 2"},
		"what cannot be used is not, also in doubt":  {2, status.Observation{Problem: useless, Readiness: unsure}, "False InvalidSpec 2"},
		"what cannot be used is not, also by entry":  {0, status.Observation{Problem: useless, Readiness: yes}, "False InvalidSpec 2"},
		"a user's pause is neither":                  {2, status.Observation{InjectionPaused: true, Readiness: no}, ""},
		"what cannot be used is not, also if paused": {2, status.Observation{InjectionPaused: true, Problem: useless}, "False InvalidSpec 2"},
	} {
		var before []metav1.Condition
		if tc.before > 0 {
			before = []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Injecting", ObservedGeneration: tc.before}}
		}
		tc.next.Generation, tc.next.Now, tc.next.Plan = 2, start, &rollout.Plan{}
		s := status.Next(appsv1beta1.SidecarSetStatus{Conditions: before}, tc.next)
		got := ""
		if c := meta.FindStatusCondition(s.Conditions, "Ready"); c != nil {
			got = fmt.Sprint(c.Status, " ", c.Reason, " ", c.ObservedGeneration)
		}
		if meta.IsStatusConditionTrue(s.Conditions, "Reconciling") {
			got += " Reconciling"
		}
		if got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

// Of a generation that is not recorded, the status says only that.
func TestBehind(t *testing.T) {
	before := status.Next(appsv1beta1.SidecarSetStatus{}, status.Observation{Generation: 1, Counters: count, Now: start, Plan: &rollout.Plan{}})
	o := status.Observation{Generation: 2, Now: start, Unrecorded: errors.New("exceeded quota")}
	got := status.Behind(before, o)
	c := meta.FindStatusCondition(got.Conditions, appsv1beta1.ConditionDegraded)
	if got.ObservedGeneration != 1 || c.Reason != appsv1beta1.ReasonRevisionNotRecorded || !strings.Contains(c.Message, "generation 2") || !meta.IsStatusConditionTrue(got.Conditions, "Stalled") {
		t.Errorf("status = %+v", got)
	}
	if got := status.Behind(appsv1beta1.SidecarSetStatus{}, o); len(got.Conditions) > 0 {
		t.Errorf("of a new SidecarSet it says %+v", got)
	}
}

// A CRD that does not have rolloutStartTime prunes it. No status is written again because of that. A Pod that
// is deleted while it is updating then uses the budget for ten minutes, if no updated Pod is available.
func TestACRDWithoutRolloutStartTime(t *testing.T) {
	const now = 1_800_000_000
	written := status.Next(appsv1beta1.SidecarSetStatus{}, status.Observation{Now: time.Unix(now, 0), Plan: &rollout.Plan{Status: rollout.Status{Started: now - 60}}})
	stored := written
	stored.RolloutStartTime = nil
	if written.RolloutStartTime == nil || !status.Equal(stored, written) {
		t.Errorf("the status is written again: rolloutStartTime is %v", written.RolloutStartTime)
	}
	record := &podstate.Summary{Order: podstate.Order{Assigned: true}}
	updating := &rollout.Pod{Summary: record, Updated: true, Written: podstate.Written{At: now - 5}}
	for began, want := range map[*metav1.Time]int64{written.RolloutStartTime: 60, stored.RolloutStartTime: 600} {
		of := status.RolloutOf(appsv1beta1.SidecarSetStatus{RolloutStartTime: began}, "")
		if got := of.Disappear(updating, rollout.NewStrategy(&appsv1beta1.SidecarSet{}), false, 0, now); got.DisappearedUntil != now+want {
			t.Errorf("begun at %v, it uses the budget for %d s, want %d", began, got.DisappearedUntil-now, want)
		}
	}
}
