package tally_test

import (
	"testing"
	"time"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/tally"
)

// A list of many Pods takes long, and shows the state at the time at which it began.
func TestANewLeaderEvictsNoPodSoonAfterItsFirstList(t *testing.T) {
	r := &rebuilt{Tally: newTally(), now: 1000}
	r.change(t, "Outdated", "v2", nil)
	r.current(1000)
	r.wait(0)
	r.wait(2 * absence)
	set(r.Tally, of(carrier(0, "v1"), 500))
	r.Watched(1)
	r.wait(1)
	r.wantDue(t, "just after the list", "")
	r.wait(absence)
	r.wantDue(t, "later", "p-0")
}

// A new leader knows the Pods before it knows which of them the last leader evicted. Until
// then no Pod is updated in place either: the replacements may take the whole budget.
func TestANewLeaderUpdatesNoPodBeforeItKnowsTheReplacements(t *testing.T) {
	r, outdated := newImages(t, "Outdated")
	starting := of(carrier(1, "v2"), 1005)
	ready := starting.Status.Conditions
	starting.Status.Conditions = nil
	another := of(carrier(2, "v2"), 1005)
	another.Status.Conditions = nil
	set(r.Tally, outdated, starting, another)
	r.current(1000)
	r.wait(1)
	if due := r.Due("log", 10).Updates; len(due) != 0 {
		t.Errorf("%+v are due while the leader is new", due)
	}
	r.wait(absence)
	r.wantUsed(t, "with two replacements that are not ready", 2)
	if due := r.Due("log", 10).Updates; len(due) != 0 {
		t.Errorf("%+v are due while replacements take all places", due)
	}
	starting.Status.Conditions = ready
	set(r.Tally, starting)
	if due := r.Due("log", 10).Updates; len(due) != 1 || due[0].Way != inplace.Images {
		t.Errorf("%+v are due, want one", due)
	}
}

// Updates in place wait until a new leader knows the replacements, and no longer, also if
// the SidecarSet is not in force, so that no Pod is evicted.
func TestUpdatesInPlaceGoOnWhenANewLeaderKnowsTheReplacements(t *testing.T) {
	r, outdated := newImages(t, "Outdated")
	set(r.Tally, outdated)
	r.SetCurrent("log", tally.Current{Program: r.program, Revision: r.program.Revision(), Since: time.Unix(1000, 0)})
	r.wait(1)
	stirred(r.Tally)
	r.wait(absence)
	if names := stirred(r.Tally); len(names) != 1 {
		t.Errorf("stirred are %q, want the SidecarSet", names)
	}
	if due := r.Due("log", 10).Updates; len(due) != 1 || due[0].Way != inplace.Images {
		t.Errorf("%+v are due, want one", due)
	}
}
