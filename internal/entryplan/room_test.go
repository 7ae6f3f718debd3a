package entryplan_test

import (
	"testing"
	"time"

	"github.com/sidecarset/operator/internal/entryplan"
)

// strangers are reviews of SidecarSets that are never stored, and a leader, in steps of a
// tenth of a second.
type strangers struct {
	t      *testing.T
	room   entryplan.ProvisionalRoom
	layout entryplan.Layout
	now    time.Time
}

// step lets reviews ask for entries, and then the leader do its work. It returns how many
// of the entries had room, and how many entries are present afterwards.
func (s *strangers) step(asked ...entryplan.Entry) (served, left int) {
	s.t.Helper()
	settings := settings()
	settings.MinSerial = s.now.UnixMilli()
	changes, unplaced := entryplan.Widen(s.layout, asked, settings)
	s.layout = carryOut(s.layout, changes)
	s.room.Observe(s.layout, s.now)
	due, _ := s.room.Due(nil, s.now)
	s.room.Expire(due, s.now)
	state := calm(s.layout)
	state.Expired, state.Room = s.room.Expired(), s.room.Room()
	s.layout = carryOut(s.layout, entryplan.Next(state, settings).Changes)
	s.now = s.now.Add(100 * time.Millisecond)
	return len(asked) - len(unplaced), len(s.layout.Provisionals())
}

// Each review keeps an entry for a whole second, even if another one has asked before: its
// SidecarSet may be stored when the first second is over.
func TestAReviewRenewsAProvisionalEntry(t *testing.T) {
	s := &strangers{t: t, layout: bare(), now: noon}
	e := strict(t, 1)
	for i := range 10 {
		if served, left := s.step(e); served != 1 || left != 1 {
			t.Fatalf("in step %d: %d served, %d left", i, served, left)
		}
	}
	for i := range 9 {
		if _, left := s.step(); left != 1 {
			t.Fatalf("%d steps after the last review the entry is gone", i+1)
		}
	}
	s.step()
	if _, left := s.step(); left != 0 {
		t.Error("the entry is left")
	}
	if got := s.room.Room(); got != entryplan.MaxProvisional-2 {
		t.Errorf("the room is %d, want a place less for the second second, and one for the entry", got)
	}
}

// A stranger who asks for the same entries all the time pays for each second.
func TestEachRenewalOfAProvisionalEntryCostsAPlace(t *testing.T) {
	s := &strangers{t: t, layout: bare(), now: noon}
	var asked []entryplan.Entry
	for i := range entryplan.MaxProvisional {
		asked = append(asked, strict(t, i))
	}
	total := func(minutes int) (seconds float64) {
		for range minutes * 600 {
			_, left := s.step(asked...)
			seconds += float64(left) / 10
		}
		return seconds / float64(minutes)
	}
	first, later := total(1), total(10)
	t.Logf("entry-seconds: %.1f in the first minute, %.1f in each later one", first, later)
	if first > 40 || later > 10 { // docs/design/0005 has the arithmetic
		t.Errorf("entry-seconds: %.1f in the first minute, %.1f in each later one", first, later)
	}
}
