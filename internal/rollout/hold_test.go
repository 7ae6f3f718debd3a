package rollout_test

import (
	"maps"
	"slices"
	"testing"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// evidenceOf returns what Pods show at noon, and the plan.
func evidenceOf(u update, status rollout.Status, earlier bool, pods []*rollout.Pod) (rollout.Evidence, rollout.Plan) {
	s := withMinReady(u, "30")
	for _, p := range pods {
		p.Traits = s.TraitsOf(p.Summary.Labels.Labels())
	}
	plan := rollout.Decide(rollout.Input{Strategy: s, Status: status, Stored: true, NewPodsGetEarlier: earlier, Unstable: true, Now: noon}, pods)
	return plan.Evidence, plan
}

// What running Pods show of a revision, and whether new Pods wait for it.
func TestEvidence(t *testing.T) {
	all := func(parts ...[]*rollout.Pod) []*rollout.Pod { return slices.Concat(parts...) }
	one := func(i int, changes ...change) []*rollout.Pod { return []*rollout.Pod{pod(i, changes...)} }
	blocked := func(p *rollout.Pod) {
		p.Verdict = inplace.Verdict{Method: inplace.Recreate, Reason: inplace.RunToCompletion}
	}
	bornWith := func(at int) []change { return []change{current, readySince(at)} }
	resting := func(p *rollout.Pod) { p.Backoff = &rollout.Backoff{Until: noon + 10, Reason: inplace.WriteFailed} }
	cured := with(available, wrote(1000, podstate.WasNotReady), carriedOut(990))
	gone := rollout.Status{NotReadyBefore: 0, Disappeared: 1, DisappearedUntil: noon + 300}
	tests := map[string]struct {
		strategy           update
		status             rollout.Status
		pods               []*rollout.Pod
		available, pending int
		next               int64 // seconds; 0: it does not matter
		hold               bool
	}{
		"there are no Pods":                         {},
		"no Pod is updated yet":                     {pods: many(9), pending: 9, hold: true},
		"one is tried":                              {pods: all(one(1, updating...), many(9)), pending: 10, hold: true},
		"one is Ready, and not for long":            {pods: all(one(1, unavailable...), many(9)), pending: 10, hold: true},
		"one is available":                          {pods: all(many(1, available...), one(1), one(2), one(3)), available: 1, pending: 3, hold: true},
		"two are":                                   {pods: all(many(2, available...), one(1)), available: 2, pending: 1, hold: true},
		"three are":                                 {pods: all(many(3, available...), one(1)), available: 3, pending: 1},
		"three are that were not Ready":             {pods: all(many(3, cured...), one(1)), available: 3, pending: 1},
		"three are that were created with it":       {pods: all(many(3, bornWith(40)...), one(1)), available: 3, pending: 1},
		"they were created with it a moment ago":    {pods: all(many(3, bornWith(10)...), one(1)), pending: 1, next: 20, hold: true},
		"both of two":                               {pods: many(2, available...), available: 2},
		"one of two failed":                         {pods: all(many(1, available...), one(1, late...)), available: 1, pending: 1, hold: true},
		"the tried one disappeared":                 {status: gone, pods: many(1, available...), available: 1, pending: 1, hold: true},
		"a silent node":                             {pods: one(1, silentPod...), pending: 1, hold: true},
		"a silent node, after ten minutes":          {pods: one(1, with(silentPod, wrote(700, podstate.WasReady))...)},
		"a cure is tried":                           {pods: one(1, downAgain...), pending: 1, hold: true},
		"a cure does not help":                      {pods: one(1, with(downAgain, wrote(700, podstate.WasNotReady))...)},
		"it waits for something else":               {pods: one(1, with(downAgain, carriedOut(90))...)},
		"NotUpdate":                                 {strategy: update{Type: appsv1beta1.NotUpdateSidecarSetStrategyType}, pods: all(one(1, updating...), many(9))},
		"paused before the edit":                    {strategy: update{Paused: true}, pods: many(9)},
		"paused after a Pod broke":                  {strategy: update{Paused: true}, pods: all(one(1, updating...), many(9)), pending: 1, hold: true},
		"maxUnavailable is 0":                       {strategy: update{MaxUnavailable: share("0")}, pods: many(9)},
		"maxUnavailable is 0, and one is not Ready": {strategy: update{MaxUnavailable: share("0")}, pods: all(one(1, outdatedDown...), many(9)), pending: 1, hold: true},
		"other changes than images, only Jobs":      {pods: many(9, blocked)},
		"the partition keeps all":                   {strategy: update{Partition: share("100%")}, pods: many(9)},
		"the partition keeps all but one":           {strategy: update{Partition: share("8")}, pods: many(9), pending: 1, hold: true},
		"and that one is available":                 {strategy: update{Partition: share("8")}, pods: all(many(1, available...), one(1)), available: 1},
		"the partition keeps half":                  {strategy: update{Partition: share("50%")}, pods: many(10), pending: 5, hold: true},
		"an update strategy that cannot be read":    {strategy: update{Partition: share("many")}, pods: many(9)},
		"Pods without a node":                       {pods: many(9, outdatedDown[0], unassigned)},
		"without a node, and the first one":         {pods: all(one(1), many(9, outdatedDown[0], unassigned)), pending: 1, hold: true},
		"on dead nodes":                             {pods: many(9, outdatedDown[0], dead)},
		"new Pods become Ready, or are repaired":    {pods: many(2, outdatedDown[0], created(100)), pending: 2, hold: true},
		"a write failed":                            {pods: many(2, resting), pending: 2, hold: true},
		"writes are refused":                        {pods: many(2, refused)},
		"a refused one is tried again":              {pods: one(1, refused, current, sent(podstate.WasReady))},
		"another program undoes the updates":        {pods: many(2, undone(100, podstate.WasReady))},
	}
	wrong := map[string]bool{}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.status == (rollout.Status{}) {
				tc.status = rollout.Begun
			}
			e, plan := evidenceOf(tc.strategy, tc.status, true, tc.pods)
			if want := (rollout.Evidence{Available: tc.available, Pending: tc.pending}); e != want || tc.next != 0 && plan.Next != noon+tc.next {
				t.Errorf("evidence %+v, again in %d s; want %+v, in %d s", e, plan.Next-noon, want, tc.next)
			}
			edit := rollout.Revisions{Latest: "b", Planned: "b", Stable: "a", Recorded: true}
			if got := rollout.Hold(edit, e); got != tc.hold {
				t.Errorf("hold %v", got)
			}
			for mistake, hold := range wrongHolds {
				wrong[mistake] = wrong[mistake] || hold(edit, e) != tc.hold
			}
		})
	}
	checkWrong(t, wrong, "n = 1", "hold without end", "no trial")
}

// wrongHolds are planted mistakes. The tests of this file find each.
var wrongHolds = map[string]func(rollout.Revisions, rollout.Evidence) bool{
	"n = 1": func(r rollout.Revisions, e rollout.Evidence) bool {
		return rollout.Hold(r, e) && e.Available == 0
	},
	"hold without end": func(r rollout.Revisions, e rollout.Evidence) bool {
		return rollout.Hold(r, rollout.Evidence{Available: e.Available, Pending: 1})
	},
	"no trial": func(r rollout.Revisions, e rollout.Evidence) bool {
		return rollout.Hold(r, rollout.Evidence{Available: e.Available})
	},
	"a plan of another revision": func(r rollout.Revisions, e rollout.Evidence) bool {
		r.Planned = r.Latest
		return rollout.Hold(r, e)
	},
	"a missing revision": func(r rollout.Revisions, e rollout.Evidence) bool {
		r.Recorded = true
		return rollout.Hold(r, e)
	},
	"the edit is the release": func(r rollout.Revisions, e rollout.Evidence) bool {
		return r.Planned == r.Latest && rollout.Hold(r, e)
	},
}

func checkWrong(t *testing.T, found map[string]bool, names ...string) {
	t.Helper()
	for _, name := range names {
		if !found[name] {
			t.Errorf("the mistake %q is not found", name)
		}
	}
}

// Which revisions are held back, whatever Pods show.
func TestHold(t *testing.T) {
	working, failing, none := rollout.Evidence{Available: 3, Pending: 1}, rollout.Evidence{Pending: 9}, rollout.Evidence{}
	tests := map[string]struct {
		rollout.Revisions
		holds [3]bool // while Pods fail, while no Pod can show anything, while enough are available
	}{
		"the first revision":          {rollout.Revisions{Latest: "a", Planned: "a"}, [3]bool{}},
		"no edit":                     {rollout.Revisions{Latest: "a", Planned: "a", Stable: "a", Recorded: true}, [3]bool{}},
		"an edit":                     {rollout.Revisions{Latest: "b", Planned: "b", Stable: "a", Recorded: true}, [3]bool{true, false, false}},
		"an edit that is not planned": {rollout.Revisions{Latest: "b", Planned: "a", Stable: "a", Recorded: true}, [3]bool{true, true, true}},
		"a second edit":               {rollout.Revisions{Latest: "c", Planned: "b", Stable: "a", Recorded: true}, [3]bool{true, true, true}},
		"a way back":                  {rollout.Revisions{Latest: "a", Planned: "b", Stable: "a", Recorded: true}, [3]bool{}},
		"the stable one is deleted":   {rollout.Revisions{Latest: "b", Planned: "b", Stable: "a"}, [3]bool{}},
	}
	wrong := map[string]bool{}
	for name, tc := range tests {
		for i, e := range []rollout.Evidence{failing, none, working} {
			if got := rollout.Hold(tc.Revisions, e); got != tc.holds[i] {
				t.Errorf("%s, %+v: hold %v", name, e, got)
			}
			for mistake, hold := range wrongHolds {
				wrong[mistake] = wrong[mistake] || hold(tc.Revisions, e) != tc.holds[i]
			}
		}
	}
	checkWrong(t, wrong, slices.Collect(maps.Keys(wrongHolds))...)
}
