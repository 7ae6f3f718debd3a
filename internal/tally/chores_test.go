package tally_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

// A Pod that was updated gets its condition when it is back, and when no Pod waits for
// its update.
func TestTheConditionWaitsForUpdates(t *testing.T) {
	tl := newTally()
	rolling(t, tl, "v2", nil)
	first, second := carrier(0, "v1"), carrier(1, "v1")
	set(tl, first, second, carrier(2, "v2"))
	chores := func(when string, updates int, want ...string) {
		t.Helper()
		due := tl.Due("log", 1)
		if len(due.Updates) != updates || len(due.Chores) != len(want) {
			t.Fatalf("%s: %d updates and %d chores are due, want %d and %d", when, len(due.Updates), len(due.Chores), updates, len(want))
		}
		for i, chore := range due.Chores {
			if chore.Pod.Name != want[i] || !chore.FirstWord {
				t.Errorf("%s: a chore is %s, first word: %t", when, chore.Pod.Name, chore.FirstWord)
			}
		}
	}
	back := func(p *corev1.Pod, version string) {
		p.Status, p.ResourceVersion = carrier(0, "v2").Status, version
		set(tl, p)
	}
	first = moved(first, "v2", time.Unix(2000, 0))
	set(tl, first)
	chores("in flight, and one is outdated", 1)
	chores("in flight", 0)
	back(first, "3")
	chores("back", 0, first.Name)
	chores("given out", 0)
	tl.CheckChore("log", podstate.MakeNamespace("a"), first.Name)
	chores("looked at again", 0, first.Name)
	first.Status.Conditions = append(first.Status.Conditions, corev1.PodCondition{Type: appsv1beta1.PodConditionUpgradable, Message: `{"log":true}`})
	first.ResourceVersion = "4"
	set(tl, first)
	tl.CheckChore("log", podstate.MakeNamespace("a"), first.Name)
	chores("said", 0)

	second = moved(second, "v2", time.Unix(2000, 0))
	second.ResourceVersion = "5"
	set(tl, second)
	back(second, "6")
	third := carrier(3, "v1")
	third.ResourceVersion = "7"
	set(tl, third)
	chores("back, and one is outdated", 1)
	chores("none waits", 0, second.Name)
}
