package rollout_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
)

// ready returns an outdated Pod that is available. Pods with lower numbers come first
// in the default order.
func ready(i int) rollout.Pod {
	return rollout.Pod{
		UID: types.UID(fmt.Sprintf("uid-%06d", i)), Namespace: podstate.MakeNamespace("default"), Name: fmt.Sprintf("pod-%06d", i),
		Way: inplace.Images, Ready: true,
		Order: podstate.Order{Assigned: true, Phase: podstate.Running, ReadySince: int64(2e9 - i), Created: 1e9},
	}
}

func broken(i int) rollout.Pod {
	p := ready(i)
	p.Ready, p.Order.ReadySince = false, 0
	return p
}

// queue returns a queue of these Pods.
func queue(s *rollout.Strategy, pods ...rollout.Pod) *rollout.Queue {
	q := rollout.NewQueue()
	q.SetStrategy(s)
	q.SetContent("wanted")
	q.SetCounts(len(pods), 0)
	for _, p := range pods {
		q.Set(p)
	}
	return q
}

// names returns the names of the Pods that were taken, with "free" if a Pod does not count
// against the budget.
func names(takes []rollout.Take) []string {
	var all []string
	for _, t := range takes {
		name := t.Name
		if !t.Charged {
			name += " free"
		}
		all = append(all, name)
	}
	return all
}

func expect(t *testing.T, what string, got []rollout.Take, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, names(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestUnavailablePodsAreFreeAndFirst(t *testing.T) {
	q := queue(strategy(update{MaxUnavailable: share("2")}), ready(1), ready(2), ready(3), broken(8), broken(9))
	expect(t, "the first batch", q.Next(10, 0), "pod-000008 free", "pod-000009 free", "pod-000001", "pod-000002")
	expect(t, "while it is being written", q.Next(10, 0))
}

// T11: if priority puts an available Pod over budget before a broken one, the broken one does
// not wait.
func TestABrokenPodDoesNotWaitForTheBudget(t *testing.T) {
	first := ready(1)
	first.Labels = podstate.MakeLabelSet(map[string]string{"rank": "9"})
	last := broken(2)
	last.Labels = podstate.MakeLabelSet(map[string]string{"rank": "1"})
	flying := ready(3)
	flying.Way, flying.InFlight = inplace.Current, true
	for name, u := range map[string]update{
		"priority": {PriorityStrategy: byOrder("rank")},
		"scatter":  {ScatterStrategy: scatterOver("rank", "1")},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, "with no budget left", queue(strategy(u), first, last, flying).Next(10, 0), "pod-000002 free")
		})
	}
}

// T10: a Pod that is in flight keeps its place of the budget when the content changes again,
// and is taken again without a second place.
func TestPodsInFlightOfAnOlderContentCost(t *testing.T) {
	inFlight := ready(1)
	inFlight.InFlight = true
	q := queue(strategy(update{MaxUnavailable: share("1")}), inFlight, ready(2))
	expect(t, "taken", q.Next(10, 0), "pod-000001")
	if r := q.Report(); r.Used != 1 || r.Limit != rollout.Budget {
		t.Errorf("Report() = %+v, want one place used and the limit %s", r, rollout.Budget)
	}
}

// T12: Pods that cannot be updated do not count as those that partition keeps.
func TestPodsThatCannotFollowAreKeptBesidesPartition(t *testing.T) {
	blocked := ready(1)
	blocked.Way, blocked.Reason = inplace.Recreate, inplace.ImmutableFieldChanged
	q := queue(strategy(update{MaxUnavailable: share("10"), Partition: share("1")}), blocked, ready(2), ready(3))
	expect(t, "taken", q.Next(10, 0), "pod-000002")
}

func TestPodsInTransitionAreSkipped(t *testing.T) {
	moving := ready(1)
	moving.InTransition = true
	q := queue(strategy(update{}), moving, ready(2))
	expect(t, "taken", q.Next(10, 0), "pod-000002")
	if r := q.Report(); r.InTransition != 1 {
		t.Errorf("Report() = %+v, want one Pod in transition", r)
	}
}

func TestAWrittenPodIsReservedUntilTheWatchHasDeliveredIt(t *testing.T) {
	q := queue(strategy(update{MaxUnavailable: share("1")}), ready(1), ready(2))
	takes := q.Next(10, 4)
	expect(t, "first", takes, "pod-000001")
	q.Written(takes[0], 7, true)
	expect(t, "before the watch has it", q.Next(10, 6))

	now := ready(1)
	now.Way, now.InFlight = inplace.Current, true
	q.Set(now)
	expect(t, "while it is in flight", q.Next(10, 7))
	now.InFlight = false
	q.Set(now)
	expect(t, "when it is back", q.Next(10, 8), "pod-000002")
}

func TestAPodThatWasNotDisturbedGivesItsPlaceBack(t *testing.T) {
	q := queue(strategy(update{MaxUnavailable: share("1")}), ready(1), ready(2))
	q.Written(q.Next(1, 4)[0], 7, false)
	expect(t, "next", q.Next(10, 4), "pod-000002")
}

func TestAPodThatIsGoneHoldsNothingUp(t *testing.T) {
	for name, ends := range map[string]func(q *rollout.Queue, take rollout.Take){
		"before it is written":             func(q *rollout.Queue, take rollout.Take) { q.Remove(take.UID); q.Retry(take) },
		"refused after it is gone":         func(q *rollout.Queue, take rollout.Take) { q.Remove(take.UID); q.Hold(take, inplace.Refused, "gone") },
		"after it is written":              func(q *rollout.Queue, take rollout.Take) { q.Written(take, 7, true); q.Remove(take.UID) },
		"written, but the answer was late": func(q *rollout.Queue, take rollout.Take) { q.Remove(take.UID); q.Written(take, 7, true) },
	} {
		t.Run(name, func(t *testing.T) {
			q := queue(strategy(update{MaxUnavailable: share("1")}), ready(1), ready(2))
			take := q.Next(10, 4)[0]
			ends(q, take)
			expect(t, "next", q.Next(10, 8), "pod-000002")
			if r := q.Report(); len(r.Blocked) != 0 {
				t.Errorf("blocked are %+v", r.Blocked)
			}
		})
	}
}

// A Pod that leaves the selector and returns while it is being written does not count as a new
// Pod.
func TestAPodThatReturnsWhileItIsWrittenIsStillReserved(t *testing.T) {
	q := queue(strategy(update{MaxUnavailable: share("1")}), ready(1), ready(2))
	take := q.Next(10, 4)[0]
	q.Remove(take.UID)
	q.Written(take, 7, true)
	expect(t, "while it is away", q.Next(10, 5))
	q.Set(ready(1))
	expect(t, "when it has returned", q.Next(10, 6))
}

func TestAHeldPodBlocksNoOther(t *testing.T) {
	q := queue(strategy(update{MaxUnavailable: share("1")}), ready(1), ready(2))
	q.Hold(q.Next(1, 0)[0], inplace.Refused, "violates PodSecurity")
	want := []appsv1beta1.SidecarSetPodGroup{{
		Reason: string(inplace.Refused), Pods: 1, Message: "violates PodSecurity", First: []string{"default/pod-000001"},
	}}
	if diff := cmp.Diff(want, q.Report().Blocked); diff != "" {
		t.Errorf("blocked (-want +got):\n%s", diff)
	}
	expect(t, "next", q.Next(1, 0), "pod-000002")
}

func TestAHeldPodIsReleasedWhenItChanges(t *testing.T) {
	relabelled, resized, restarted := ready(1), ready(1), ready(1)
	relabelled.Labels = podstate.MakeLabelSet(map[string]string{"a": "b"})
	resized.Way = inplace.Resize
	restarted.Order.Restarts++
	noted, sized := ready(1), ready(1)
	noted.Resize, sized.Resize = inplace.ResizeOpen, inplace.ResizeDone
	for name, tc := range map[string]struct {
		event func(q *rollout.Queue)
		free  bool
	}{
		"when its labels change":        {func(q *rollout.Queue) { q.Set(relabelled) }, true},
		"when its way changes":          {func(q *rollout.Queue) { q.Set(resized) }, true},
		"when a resize is done":         {func(q *rollout.Queue) { q.Set(sized) }, true},
		"not when one is put on record": {func(q *rollout.Queue) { q.Set(noted) }, false},
		"when it is released":           {func(q *rollout.Queue) { q.Release(ready(1).UID) }, true},
		"when the content changes":      {func(q *rollout.Queue) { q.SetContent("other") }, true},
		"not when its status changes":   {func(q *rollout.Queue) { q.Set(restarted) }, false},
		"not when the content does not": {func(q *rollout.Queue) { q.SetContent("wanted") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			q := queue(strategy(update{}), ready(1))
			q.Hold(q.Next(1, 0)[0], inplace.Refused, "no")
			expect(t, "while it is held", q.Next(1, 0))
			tc.event(q)
			if got := len(q.Next(1, 0)) == 1; got != tc.free {
				t.Errorf("taken: %v, want %v", got, tc.free)
			}
			if r := q.Report(); !tc.free && r.Blocked[0].Message != "no" {
				t.Errorf("the message is %q", r.Blocked[0].Message)
			}
		})
	}
}

// A refusal of the last content says nothing about the current one.
func TestALateRefusalDoesNotHoldTheNextContent(t *testing.T) {
	q := queue(strategy(update{}), ready(1))
	take := q.Next(1, 0)[0]
	q.SetContent("other")
	q.Hold(take, inplace.Refused, "bad image")
	expect(t, "next", q.Next(1, 0), "pod-000001")
}

func TestAReturnedTakeHasNoFurtherEffect(t *testing.T) {
	q := queue(strategy(update{}), ready(1))
	old := q.Next(1, 0)[0]
	q.Retry(old)
	now := q.Next(1, 0)[0]
	q.Hold(old, inplace.Refused, "late")
	q.Written(old, 1, false)
	expect(t, "while it is taken", q.Next(1, 100))
	q.Retry(now)
	expect(t, "once it is given back", q.Next(1, 100), "pod-000001")
}

func TestGroupsNameTheFirstPods(t *testing.T) {
	q := queue(strategy(update{}))
	for _, i := range []int{5, 3, 9, 1, 7} {
		p := ready(i)
		p.Way, p.Reason = inplace.LeaveAlone, inplace.NodeTooOld
		q.Set(p)
		p.UID, p.Name, p.Reason = p.UID+"x", p.Name+"x", inplace.ImmutableFieldChanged
		q.Set(p)
	}
	q.Remove(ready(1).UID)
	var got []string
	for _, g := range q.Report().Blocked {
		got = append(append(got, fmt.Sprint(g.Reason, g.Pods)), g.First...)
	}
	want := []string{"ImmutableFieldChanged5", "default/pod-000001x", "default/pod-000003x", "default/pod-000005x", "NodeTooOld4", "default/pod-000003", "default/pod-000005", "default/pod-000007"}
	if !slices.Equal(got, want) {
		t.Errorf("groups are %v, want %v", got, want)
	}
}

func TestReportSaysWhatLimits(t *testing.T) {
	current := ready(9)
	current.Way, current.InFlight = inplace.Current, true
	for limit, q := range map[rollout.Limit]*rollout.Queue{
		rollout.Unlimited:  queue(strategy(update{}), ready(1)),
		rollout.Partition:  queue(strategy(update{Partition: share("1")}), ready(1)),
		rollout.Budget:     queue(strategy(update{}), ready(1), current),
		rollout.FirstBatch: queue(firstBatch(update{MaxUnavailable: share("5")}, "1"), ready(1), current),
	} {
		if got := q.Report().Limit; got != limit {
			t.Errorf("the limit is %q, want %q", got, limit)
		}
		if took := len(q.Next(1, 0)) > 0; took != (limit == rollout.Unlimited) {
			t.Errorf("limit %q, but taken: %v", limit, took)
		}
	}
}

func TestOnlySelectedPodsAreTaken(t *testing.T) {
	in, out := ready(1), ready(2)
	in.Labels = podstate.MakeLabelSet(map[string]string{"canary": "true"})
	q := queue(strategy(update{Selector: matching("canary", "true"), MaxUnavailable: share("5")}), in, out)
	expect(t, "with the selector", q.Next(10, 0), "pod-000001")
	if r := q.Report(); r.Unselected != 1 || r.Outdated != 2 {
		t.Errorf("Report() = %+v, want one of two unselected", r)
	}
	q.SetStrategy(strategy(update{MaxUnavailable: share("5")}))
	expect(t, "without", q.Next(10, 0), "pod-000002")
}

// A Pod that a bad content has made unavailable holds a place of the budget. If partition kept
// it and let other Pods go, the rollout would never end.
func TestPartitionKeepsNoDisturbedPodBeforeOthers(t *testing.T) {
	down := func(i int) rollout.Pod {
		p := broken(i)
		p.InFlight = true
		return p
	}
	ordinal := func(p rollout.Pod, n int) rollout.Pod {
		p.Labels = podstate.MakeLabelSet(map[string]string{"ord": fmt.Sprint("web-", n)})
		return p
	}
	for name, u := range map[string]update{
		"by order": {Partition: share("70%"), PriorityStrategy: byOrder("ord")},
		"scatter":  {Partition: share("70%"), PriorityStrategy: byOrder("ord"), ScatterStrategy: scatterOver("zone", "*")},
	} {
		t.Run(name, func(t *testing.T) {
			var pods []rollout.Pod
			for i := range 10 {
				p := ordinal(ready(i), i)
				if i == 6 { // web-9 to web-7 are before it
					p = ordinal(down(i), i)
				}
				pods = append(pods, p)
			}
			q := queue(strategy(u), pods...)
			expect(t, "while it is down", q.Next(10, 0), "pod-000006")
			repaired := ordinal(ready(6), 6)
			repaired.Way = inplace.Current
			q.Set(repaired)
			q.Written(rollout.Take{UID: repaired.UID}, 1, false)
			if r := q.Report(); r.Unrepaired != 0 {
				t.Errorf("Report() = %+v, want none that stays down", r)
			}
		})
	}
	t.Run("but keeps as many", func(t *testing.T) {
		q := queue(strategy(update{Partition: share("2"), MaxUnavailable: share("9")}), ready(1), ready(2), down(3), down(4), down(5))
		expect(t, "taken", q.Next(10, 0), "pod-000003", "pod-000004", "pod-000005")
		q = queue(strategy(update{Partition: share("3"), MaxUnavailable: share("9")}), ready(1), ready(2), down(3), down(4), down(5))
		expect(t, "taken", q.Next(10, 0), "pod-000003", "pod-000004")
		if r := q.Report(); r.Unrepaired != 1 {
			t.Errorf("Report() = %+v, want one that stays down", r)
		}
	})
}

// A Pod that the operator has made unavailable holds a place of the budget, whatever selector
// says now. The report shows that no update will repair it.
func TestAnUnselectedPodInFlightHoldsItsPlace(t *testing.T) {
	in, down := ready(1), broken(2)
	in.Labels = podstate.MakeLabelSet(map[string]string{"canary": "true"})
	down.InFlight = true
	q := queue(strategy(update{Selector: matching("canary", "true")}), in, down)
	expect(t, "while it is down", q.Next(10, 0))
	if r := q.Report(); r.Unrepaired != 1 || r.Used != 1 || r.Limit != rollout.Budget {
		t.Errorf("Report() = %+v, want one that holds a place and is not repaired", r)
	}
	q.Remove(down.UID)
	expect(t, "when it is gone", q.Next(10, 0), "pod-000001")
}
