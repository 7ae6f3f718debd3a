package rollout_test

import (
	"testing"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/rollout"
)

func evictable(i int) rollout.Pod {
	p := ready(i)
	p.Way, p.Reason, p.Evictable = inplace.Recreate, inplace.ImmutableFieldChanged, true
	return p
}

func TestPodsAreEvictedAfterOthersAreUpdatedInPlace(t *testing.T) {
	q := queue(strategy(update{MaxUnavailable: share("2")}), evictable(1), evictable(2), ready(3), broken(4))
	q.SetReplacements(rollout.Replacements{Allowed: 10})
	expect(t, "taken", q.Next(10, 0), "pod-000004 free", "pod-000003", "pod-000001")
}

func TestEvictedPodsCostUntilTheyAreReplaced(t *testing.T) {
	q := queue(strategy(update{MaxUnavailable: share("2")}), evictable(1), evictable(2), evictable(3))
	q.SetReplacements(rollout.Replacements{Allowed: 10, Missing: 1})
	expect(t, "while one is missing", q.Next(10, 0), "pod-000001")
	if r := q.Report(); r.Used != 2 || r.Limit != rollout.Budget {
		t.Errorf("Report() = %+v, want two places used and the limit %s", r, rollout.Budget)
	}
	q.SetReplacements(rollout.Replacements{Allowed: 10})
	expect(t, "when it is back", q.Next(10, 0), "pod-000002")
}

// The eviction of a Pod that is not ready counts against the budget too, because the
// replacement does not exist at once.
func TestEvictingAnUnavailablePodCostsBudget(t *testing.T) {
	down := evictable(1)
	down.Ready = false
	q := queue(strategy(update{MaxUnavailable: share("0")}), down)
	q.SetReplacements(rollout.Replacements{Allowed: 10})
	expect(t, "without a budget", q.Next(10, 0))
}

func TestNoMorePodsAreEvictedThanAllowed(t *testing.T) {
	q := queue(strategy(update{MaxUnavailable: share("9")}), evictable(1), evictable(2), evictable(3), evictable(4))
	q.SetReplacements(rollout.Replacements{Allowed: 3, Missing: 1})
	expect(t, "taken", q.Next(10, 0), "pod-000001", "pod-000002")
}

func TestEvictingAPodInFlightCostsNoSecondPlace(t *testing.T) {
	down := evictable(2)
	down.InFlight = true
	q := queue(strategy(update{MaxUnavailable: share("1")}), evictable(1), down)
	q.SetReplacements(rollout.Replacements{Allowed: 10})
	expect(t, "taken", q.Next(10, 0), "pod-000002")
}

// A Pod that was disturbed, and has to wait for its eviction, does not delay the repair of
// another Pod.
func TestARepairInPlaceDoesNotWaitForAnEviction(t *testing.T) {
	for name, r := range map[string]rollout.Replacements{
		"evictions wait":        {Allowed: 3, Wait: true},
		"enough are missing":    {Allowed: 3, Missing: 3},
		"evictions are allowed": {Allowed: 3},
	} {
		t.Run(name, func(t *testing.T) {
			stuck, broken := evictable(1), ready(2)
			stuck.InFlight, broken.InFlight = true, true
			q := queue(strategy(update{MaxUnavailable: share("2")}), stuck, broken)
			q.SetReplacements(r)
			want := []string{"pod-000002"}
			if !r.Wait && r.Missing == 0 {
				want = append(want, "pod-000001")
			}
			expect(t, "taken", q.Next(10, 0), want...)
		})
	}
}

func TestEvictablePodsAreBlockedUnlessEvictionIsOn(t *testing.T) {
	q := queue(strategy(update{}), evictable(1))
	for _, on := range []bool{false, true, false} {
		r := rollout.Replacements{}
		if on {
			r.Allowed = 1
		}
		q.SetReplacements(r)
		if got := q.Report(); (len(got.Blocked) == 0) != on || (got.Waiting == 1) != on {
			t.Errorf("with eviction on: %v, Report() = %+v", on, got)
		}
	}
	expect(t, "taken", q.Next(10, 0))
}

func TestEvictablePodsCanBeMadeToWait(t *testing.T) {
	q := queue(strategy(update{}), evictable(1), ready(2))
	q.SetReplacements(rollout.Replacements{Allowed: 3, Wait: true})
	expect(t, "taken while they wait", q.Next(10, 0), "pod-000002")
	if r := q.Report(); len(r.Blocked) != 0 || r.Waiting != 1 {
		t.Errorf("Report() = %+v, want one Pod that waits", r)
	}
}
