package rollout_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// Once a Pod is written, the status says how many were not Ready, and not by the operator. Available
// Pods wait until that is stored; Pods that are down do not.
func TestTheStatusIsStoredFirst(t *testing.T) {
	s := withMinReady(update{MaxUnavailable: share("9")}, "30")
	pods := slices.Concat(many(4, outdatedDown...), many(30, available...), []*rollout.Pod{pod(1), pod(2, ours...), pod(3, with(updating, func(p *rollout.Pod) { p.Dead = true })...)})
	plan := rollout.Decide(rollout.Input{Strategy: s, Status: rollout.Begun, Stored: false, Now: noon}, pods)
	if plan.Rule != rollout.Storing || plan.Who != nil || slices.Contains(names(plan.Write), "1") || len(plan.Write) != 3 {
		t.Errorf("wrote %q by rule %d", names(plan.Write), plan.Rule)
	}
	if got := plan.Status.NotReadyBefore; got != 4 {
		t.Errorf("%d Pods were not Ready before, want 4", got)
	}
	plan.Status.NotReadyBefore = 1
	if plan = rollout.Decide(rollout.Input{Strategy: s, Status: plan.Status, Stored: true, Now: noon}, pods); plan.Status.NotReadyBefore != 1 || !slices.Contains(names(plan.Write), "1") {
		t.Errorf("wrote %q with status %+v", names(plan.Write), plan.Status)
	}
	if plan = ruled(update{}, rollout.Begun, pod(1, updating...), pod(2)); rollout.Decide(rollout.Input{Strategy: withMinReady(update{}, "30"), Status: rollout.Begun, Now: noon}, []*rollout.Pod{pod(1, updating...), pod(2)}).Rule != plan.Rule {
		t.Error("Pods that wait by another rule wait for the status")
	}
	if plan = rollout.Decide(rollout.Input{Strategy: s, Status: rollout.Begun, Stored: false, Now: noon}, many(5, available...)); plan.Rule != rollout.NoRule || plan.Status != rollout.Begun {
		t.Errorf("nothing is outdated, and the plan is %+v", plan)
	}
}

// updateStrategy.selector excludes Pods, but not those that an update took down.
func TestSelector(t *testing.T) {
	u := update{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"track": "canary"}}}
	inside, outside, victim := labelled(1, "track", "canary"), ready(2), pod(3, ours...)
	if plan := ruled(u, rollout.Begun, inside, outside, victim); plan.Unselected != 1 || plan.Outdated != 2 || !slices.Equal(names(plan.Write), []string{"3"}) {
		t.Errorf("wrote %q: %+v", names(plan.Write), plan.Numbers)
	}
}

// A Pod that was refused rests alone, with its reason.
func TestRest(t *testing.T) {
	rests := func(until int64, reason inplace.Reason) change {
		return func(p *rollout.Pod) {
			p.Backoff = &rollout.Backoff{Until: until, Reason: reason, Message: "denied by policy"}
		}
	}
	plan := ruled(update{}, rollout.Begun, pod(1, rests(noon+90, inplace.WriteRejected)), pod(2, rests(noon+40, "")), pod(3, rests(noon, inplace.WriteReverted)), pod(4, available...))
	blocked := plan.Blocked.List()
	if !slices.Equal(names(plan.Write), []string{"3"}) || plan.Next != noon+40 || plan.BackingOff != 1 || len(blocked) != 1 || blocked[0].Message != "denied by policy" {
		t.Errorf("wrote %q, again in %d s, blocked %+v", names(plan.Write), plan.Next-noon, blocked)
	}
	if plan = ruled(update{}, rollout.Begun, pod(1, rests(noon+90, inplace.WriteRejected))); plan.Rule != rollout.NoRule || plan.Who != nil {
		t.Errorf("a Pod that rests waits by rule %d", plan.Rule)
	}
}

// The end of a hot upgrade waits for no rule but paused, and not for a write that is under way.
func TestReset(t *testing.T) {
	resets := func(p *rollout.Pod) { p.Resets = true }
	for name, tc := range map[string]struct {
		strategy update
		want     int
	}{
		"budget":    {update{MaxUnavailable: share("0")}, 2},
		"partition": {update{Partition: share("100%")}, 2},
		"paused":    {update{Paused: true}, 0},
		"NotUpdate": {update{Type: appsv1beta1.NotUpdateSidecarSetStrategyType}, 0},
	} {
		if plan := ruled(tc.strategy, rollout.Begun, pod(1, with(silentPod, resets)...), pod(2, resets), pod(3, resets, sent(podstate.WasReady))); len(plan.Reset) != tc.want {
			t.Errorf("%s: %q are reset", name, names(plan.Reset))
		}
	}
}

// Sidecars that do not run are told after a minute, or after ten while they are being created.
func TestNotRunning(t *testing.T) {
	has := func(word string, since int, more ...change) *rollout.Pod {
		return pod(1, with(more, downSince(since), func(p *rollout.Pod) { p.Trouble, p.Sidecar = trouble(word), "proxy" })...)
	}
	for name, tc := range map[string]struct {
		pod  *rollout.Pod
		want string
		in   int64
	}{
		"a failure":            {has("ErrImagePull", 60, current), "ErrImagePull", 0},
		"not for long":         {has("ErrImagePull", 20, current), "", 40},
		"an outdated one":      {has("CrashLoopBackOff", 60, wrote(5000, podstate.WasNotReady)), "CrashLoopBackOff", 0},
		"it is created":        {has("ContainerCreating", 60, current), "", 540},
		"that takes long":      {has("ContainerCreating", 600, current), "ContainerCreating", 0},
		"in the future":        {has("ErrImagePull", -50, current), "", 60},
		"it is Ready":          {pod(1, current, func(p *rollout.Pod) { p.Trouble = trouble("Completed") }), "", 0},
		"it runs":              {pod(1, current, downSince(5000)), "", 0},
		"its node is not well": {has("ErrImagePull", 60, current, func(p *rollout.Pod) { p.Dead = true }), "", 0},
	} {
		u := update{Paused: true}
		for range 2 { // paused or not updated makes no difference
			plan := ruled(u, rollout.Begun, tc.pod)
			var got []string
			for _, g := range plan.NotRunning.List() {
				got = append(got, g.Reason)
				if g.Message != "proxy" || !slices.Equal(g.First, []string{"default/pod-000001"}) || (plan.NotRunningCurrent == 1) != tc.pod.Updated {
					t.Errorf("%s: told %+v, with the revision: %d", name, g, plan.NotRunningCurrent)
				}
			}
			if next := max(0, plan.Next-noon); strings.Join(got, " ") != tc.want || next != tc.in {
				t.Errorf("%s: told %q, again in %d s, want %q, %d", name, got, next, tc.want, tc.in)
			}
			u = update{Type: appsv1beta1.NotUpdateSidecarSetStrategyType}
		}
	}
}

// Pods that cannot be updated in place are counted by reason, and hold up nothing.
func TestBlocked(t *testing.T) {
	verdict := func(way inplace.Method, reason inplace.Reason) change {
		return func(p *rollout.Pod) {
			p.Verdict, p.Summary.ResizeMessage = inplace.Verdict{Method: way, Reason: reason}, "too big"
		}
	}
	moves := func(p *rollout.Pod) { p.Verdict = inplace.Verdict{Method: inplace.Resize, Moves: true} }
	plan := ruled(update{}, rollout.Begun, pod(1, verdict(inplace.Recreate, inplace.ImmutableFieldChanged)), pod(2, verdict(inplace.Recreate, inplace.ImmutableFieldChanged)),
		pod(3, verdict(inplace.LeaveAlone, inplace.ResizeDeferred)), pod(4, verdict(inplace.LeaveAlone, "")), pod(5, moves), pod(6, with(silentPod, wrote(700, podstate.WasReady))...),
		pod(7, verdict(inplace.Resize, "")))
	said := map[string]string{}
	for _, g := range plan.Blocked.List() {
		said[g.Reason] = fmt.Sprint(g.Pods, " ", g.Message)
	}
	want := map[string]string{"ImmutableFieldChanged": "2 ", "ResizeDeferred": "1 too big", "UpdateTimedOut": "1 "}
	if !maps.Equal(said, want) || plan.Outdated != 1 || !slices.Equal(names(plan.Write), []string{"7"}) || plan.Blocked.Pods() != 4 {
		t.Errorf("blocked %q, %d outdated, wrote %q", said, plan.Outdated, names(plan.Write))
	}
}

// Moved is the last write or return of a Pod with the revision. Failing Pods are those that use the budget and do
// not come back by waiting.
func TestMovedGraceAndFailing(t *testing.T) {
	grace := func(seconds uint32) change { return func(p *rollout.Pod) { p.Summary.Grace = seconds } }
	pulls := func(p *rollout.Pod) { p.Trouble = trouble("ErrImagePull") }
	plan := ruled(update{}, rollout.Begun, pod(1, with(late, grace(90))...), pod(2, with(available, grace(500))...), pod(3, with(unavailable, wrote(50, podstate.WasReady), carriedOut(40))...))
	if plan.Moved != noon-15 || plan.Grace != 90 || plan.Failing != 1 || plan.MinReady != 30 {
		t.Errorf("counted %+v", plan.Numbers)
	}
	for name, tc := range map[string]struct {
		pod     []change
		failing int
		in      int64
	}{
		"its image cannot be pulled": {with(updating, pulls), 1, 0},
		"not for a minute":           {with(updating, pulls, wrote(40, podstate.WasReady), downSince(30)), 0, 30},
		"it only waits":              {updating, 0, 0},
		"it has just failed":         {with(late, downSince(50)), 0, 10},
		"it was down before":         {with(downAgain, pulls), 0, 500},
	} {
		if plan := ruled(update{}, rollout.Begun, pod(1, tc.pod...)); plan.Failing != tc.failing || max(0, plan.Next-noon) != tc.in {
			t.Errorf("%s: %d fail, again in %d s", name, plan.Failing, plan.Next-noon)
		}
	}
	if plan := decide(strategy(update{}), pod(1, with(late, downSince(990))...)); plan.FailedAfterUpdate != 0 || plan.Updating != 1 {
		t.Errorf("a Pod that never was Ready is late: %+v", plan.Numbers)
	}
	if plan := ruled(update{}, rollout.Begun, pod(1)); plan.Moved != 0 {
		t.Errorf("a rollout without writes moved at %d", plan.Moved)
	}
}
