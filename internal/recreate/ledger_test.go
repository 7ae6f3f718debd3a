package recreate_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
)

var rs = podstate.MakeName("rs")

// absence is how long a replacement may take to be created, in seconds.
const absence = int64(recreate.DefaultCreation / time.Second)

// outdated is a replacement that carries an older content.
func outdated(uid string, back bool) recreate.Replacement {
	return recreate.Replacement{UID: types.UID(uid), Controller: rs, Back: back, Outdated: true}
}

func left(t *testing.T, what string, l *recreate.Ledger, want ...types.UID) {
	t.Helper()
	var got []types.UID
	for _, r := range l.Left() {
		got = append(got, r.UID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v are left, want %v", what, got, want)
	}
}

func replacement(uid string, back bool) recreate.Replacement {
	return recreate.Replacement{UID: types.UID(uid), Controller: rs, Back: back}
}

// evicted returns a Ledger of the Pods "old-0", "old-1", ..., all evicted at second 0.
func evicted(n int) *recreate.Ledger {
	l := &recreate.Ledger{}
	for i := range n {
		uid := types.UID(fmt.Sprint("old-", i))
		l.Begin(uid, rs)
		l.Accepted(uid, 0)
	}
	return l
}

func expect(t *testing.T, what string, l *recreate.Ledger, now int64, missing, allowed int) {
	t.Helper()
	got, _ := l.Replacements(now)
	if want := (rollout.Replacements{Missing: missing, Allowed: allowed}); got != want {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

func TestAnEvictedPodCostsUntilItsReplacementIsBack(t *testing.T) {
	l := evicted(1)
	expect(t, "evicted", l, 1, 1, 3)
	l.Added(replacement("new", false), 2)
	l.Gone("old-0", 3)
	expect(t, "replaced", l, 100, 1, 3)
	l.Changed(replacement("other", true))
	expect(t, "another Pod is ready", l, 100, 1, 3)
	l.Changed(replacement("new", true))
	expect(t, "back", l, 100, 0, math.MaxInt32)
}

func TestAReplacementMayBeFasterThanTheAnswer(t *testing.T) {
	l := &recreate.Ledger{}
	l.Begin("old", rs)
	expect(t, "begun", l, 0, 0, 3)
	l.Added(replacement("new", true), 1)
	l.Accepted("old", 2)
	expect(t, "accepted", l, 2, 0, math.MaxInt32)
}

func TestARefusedEvictionCostsNothing(t *testing.T) {
	l := &recreate.Ledger{}
	l.Begin("old", rs)
	l.Cancel("old")
	expect(t, "refused", l, 1, 0, 3)
}

func TestPodsOfOtherControllersReplaceNothing(t *testing.T) {
	l := evicted(1)
	l.Added(recreate.Replacement{UID: "new", Controller: podstate.MakeName("other"), Back: true}, 1)
	expect(t, "after a Pod of another controller", l, 1, 1, 3)
}

func TestAControllerThatWasScaledDownHoldsNothingUp(t *testing.T) {
	l := evicted(1)
	expect(t, "while the Pod ends", l, 100_000, 1, 3)
	l.Gone("old-0", 100_000)
	_, next := l.Replacements(100_001)
	expect(t, "shortly after it is gone", l, 100_001, 1, 3)
	expect(t, "when that was long ago", l, next, 0, 2)
}

// A quota or another webhook may refuse all new Pods.
func TestReplacementsThatAreNeverCreatedAreFailures(t *testing.T) {
	l, evicted := &recreate.Ledger{}, 0
	for now := int64(0); now < 10_000; now += 100 {
		for r, _ := l.Replacements(now); r.Missing < min(2, r.Allowed); r, _ = l.Replacements(now) {
			uid := types.UID(fmt.Sprint("old-", evicted))
			l.Begin(uid, rs)
			l.Accepted(uid, now)
			l.Gone(uid, now+1)
			evicted++
		}
	}
	if evicted != 3 || !l.Stopped() {
		t.Errorf("%d Pods are evicted, and that has stopped: %v; want 3", evicted, l.Stopped())
	}
}

func TestAReplacementThatIsGoneIsReplacedToo(t *testing.T) {
	l := evicted(1)
	l.Gone("old-0", 1)
	l.Added(replacement("new", false), 1)
	l.Gone("new", 2)
	l.Added(replacement("newer", false), 3)
	expect(t, "replaced again", l, 4, 1, 3)
	l.Changed(replacement("newer", true))
	expect(t, "back", l, 5, 0, math.MaxInt32)
}

// The content changes while replacements start.
func TestAReplacementWithAnOlderContentIsUntracked(t *testing.T) {
	l := evicted(3)
	l.Added(replacement("starts", false), 1)
	l.Added(outdated("late", false), 1) // a webhook whose snapshot was behind has injected it
	left(t, "at once", l, "late")
	l.SetContent("next")
	l.Changed(outdated("starts", false))
	left(t, "with the next content", l, "starts")
	l.Added(outdated("ready", true), 2)
	left(t, "of those that are available", l)
	expect(t, "afterwards", l, 100_000, 0, 3)
}

// The replacement exists before the API server has answered, and the content changes.
func TestAReplacementIsTrackedUntilTheEvictionIsAnswered(t *testing.T) {
	for _, accepted := range []bool{true, false} {
		l := evicted(1)
		l.Begin("old", rs)
		l.Added(replacement("first", false), 1)
		l.Added(replacement("second", false), 1)
		l.Changed(outdated("second", false))
		left(t, "before the answer", l)
		if accepted {
			l.Accepted("old", 2)
			left(t, "accepted", l, "second")
		} else {
			l.Cancel("old")
			left(t, "refused", l)
		}
		expect(t, "afterwards", l, 3, 1, 3)
	}
}

// The Pod may have been the replacement of another Pod, and the API server has not answered.
func TestAPodRelabelledBeforeTheEvictionsAnswerReplacesNoOther(t *testing.T) {
	l := &recreate.Ledger{}
	l.Begin("old", rs)
	l.Added(replacement("relabelled", false), 1)
	if !l.Forget("relabelled") {
		t.Error("it was not waited for")
	}
	l.Accepted("old", 2)
	expect(t, "evicted", l, 3, 1, 3)
	l.Begin("old-1", rs)
	l.Accepted("old-1", 4)
	expect(t, "with another", l, 5, 2, 3)
	l.Added(replacement("new", true), 6)
	l.Added(replacement("new-1", true), 6)
	expect(t, "both are back", l, 7, 0, math.MaxInt32)
}

// Another webhook removes the sidecars from a replacement, or no replica answers at its creation.
func TestAReplacementThatIsReadyWithoutTheContentIsAFailure(t *testing.T) {
	l := evicted(3)
	for i := range 3 {
		r := replacement(fmt.Sprint("new-", i), false)
		r.InVain = true
		l.Added(r, 1)
	}
	expect(t, "after three", l, 2, 0, 0)
	if !l.Stopped() {
		t.Error("evicting goes on")
	}
}

func TestFailedReplacementsAreUntrackedWithTheNextContent(t *testing.T) {
	l := evicted(3)
	for i := range 3 {
		l.Added(replacement(fmt.Sprint("new-", i), false), 0)
	}
	_, next := l.Replacements(1)
	expect(t, "failed", l, next, 3, 0)
	l.SetContent("next, or the same and another mode")
	if got := len(l.Left()); got != 3 {
		t.Errorf("%d are left, want 3", got)
	}
	expect(t, "a new attempt", l, next+1, 0, 3)
}

func TestEvictionStopsAfterThreeFailedReplacements(t *testing.T) {
	l := evicted(3)
	for i := range 3 {
		l.Added(replacement(fmt.Sprint("new-", i), false), int64(i))
	}
	expect(t, "while they start", l, 10, 3, 3)
	_, next := l.Replacements(10)
	expect(t, "when they do not become ready", l, next+10, 3, 0)
	if l.Failed() != 3 {
		t.Errorf("%d failures, want 3", l.Failed())
	}
	l.Changed(replacement("new-1", true))
	expect(t, "when one does", l, next+20, 2, math.MaxInt32)
}

func TestTimeoutsOfReplacementsCanBeChosen(t *testing.T) {
	l := evicted(2)
	l.Timeouts = recreate.Timeouts{Creation: 5 * time.Second, Ready: 20 * time.Second}
	l.Gone("old-0", 100)
	l.Gone("old-1", 100)
	l.Added(replacement("new", false), 101)
	for _, at := range []int64{105, 121} { // one is not created, and one not ready
		if r, next := l.Replacements(at - 1); next != at || r.Allowed != 3-int(at/121) {
			t.Errorf("at second %d, %d may be missing, and something may change at second %d; want %d, %d", at-1, r.Allowed, next, 3-at/121, at)
		}
	}
	expect(t, "when both have failed", l, 121, 1, 2)
	if l.Failed() != 1 {
		t.Errorf("%d replacements that exist have failed, want 1", l.Failed())
	}
}

// Two Pods of a controller are about to be evicted, and the replacement exists before the
// answers. It belongs to the Pod that is evicted.
func TestAReplacementBelongsToAnAcceptedEviction(t *testing.T) {
	l := &recreate.Ledger{}
	l.Begin("old-0", rs)
	l.Begin("old-1", rs)
	l.Added(replacement("new", false), 1)
	l.Accepted("old-1", 2)
	l.Changed(replacement("new", true))
	expect(t, "with one answer", l, 3, 0, math.MaxInt32)
	l.Accepted("old-0", 4)
	expect(t, "with the other", l, 5, 1, math.MaxInt32)
}

func TestANewLeaderAdoptsReplacements(t *testing.T) {
	l := &recreate.Ledger{}
	l.Adopt(replacement("new", false))
	l.Adopt(replacement("new", false))
	l.Adopt(replacement("ready", true))
	expect(t, "adopted", l, 1, 1, 3)
	expect(t, "it may be broken for another reason", l, 1_000_000, 1, 3)
	l.Changed(replacement("new", true))
	expect(t, "back, which says nothing about others", l, 2, 0, 3)
}

func TestANewLeaderAdoptsPodsThatAreBeingEvicted(t *testing.T) {
	l := &recreate.Ledger{}
	l.AdoptVictim("old", rs)
	l.AdoptVictim("old", rs)
	expect(t, "being evicted", l, 1_000_000, 1, 3)
	l.Adopt(replacement("new", false)) // it may replace a Pod that is gone
	expect(t, "with a Pod that is not back", l, 1_000_000, 2, 3)
	l.Changed(replacement("new", true))
	expect(t, "of which one is back", l, 1_000_001, 1, 3)
	l.Gone("old", 1_000_001)
	expect(t, "gone", l, 1_000_001, 1, 3)
	expect(t, "gone for some time: the other one has replaced it", l, 1_000_001+absence, 0, 3)
}

// Three apps that start slowly are not a reason to stop.
func TestANewLeaderCountsNoFailuresOfPodsThatTheLastOneEvicted(t *testing.T) {
	l := &recreate.Ledger{}
	for i := range 3 {
		old, begun := fmt.Sprint("old-", i), fmt.Sprint("begun-", i)
		l.AdoptVictim(types.UID(old), rs)
		l.Gone(types.UID(old), 1)
		l.Added(replacement("new-"+old, false), 2)
		l.Adopt(replacement(begun, false))
		l.Gone(types.UID(begun), 3)
		l.Added(replacement("new-"+begun, false), 4)
	}
	for _, now := range []int64{5, 5 + absence, 1_000_000} {
		expect(t, fmt.Sprint("at second ", now), l, now, 6, 3)
	}
}

func TestAnAdoptedReplacementThatBecomesReadyEndsTheStop(t *testing.T) {
	l := &recreate.Ledger{}
	l.Stop()
	l.Adopt(replacement("new-0", false))
	l.Adopt(replacement("new-1", false))
	expect(t, "stopped", l, 1, 2, 0)
	l.Changed(replacement("new-0", true))
	expect(t, "when one is ready, which is not a success of this leader", l, 2, 1, 3)
}

func TestANewLeaderEvictsNoPodWhileRecreationIsStopped(t *testing.T) {
	l := &recreate.Ledger{}
	l.SetContent("broken")
	l.Stop()
	expect(t, "stopped", l, 0, 0, 0)
	l.SetContent("repaired")
	expect(t, "with another content", l, 0, 0, 3)
}

// BenchmarkAdoptedPods measures one event after 10,000 Pods were adopted that do not become
// ready. Their authors may have made them on purpose.
func BenchmarkAdoptedPods(b *testing.B) {
	const pods = 10_000
	l := &recreate.Ledger{}
	uids := make([]string, pods)
	for i := range uids {
		uids[i] = fmt.Sprint("adopted-", i)
		l.Adopt(replacement(uids[i], false))
	}
	b.Run("another event", func(b *testing.B) {
		for b.Loop() {
			l.Changed(replacement("another", false))
			l.Replacements(1)
		}
	})
	b.Run("gone and replaced", func(b *testing.B) {
		n := 0
		for b.Loop() {
			i := n % pods
			l.Gone(types.UID(uids[i]), 1)
			n++
			uids[i] = fmt.Sprint("replacement-", n)
			l.Added(replacement(uids[i], false), 1)
			l.Replacements(1)
		}
	})
	b.Run("adopted", func(b *testing.B) {
		for b.Loop() {
			l := &recreate.Ledger{}
			for _, uid := range uids {
				l.Adopt(replacement(uid, false))
			}
		}
	})
}
