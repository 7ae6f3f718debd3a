package entry_test

import (
	"testing"
	"time"

	"github.com/sidecarset/operator/internal/entry"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// The comments name the mistakes of docs/design/0005 that a case is about.
func TestJudge(t *testing.T) {
	t.Parallel()
	const here, there = "here.pods.sidecarset.io", "there.pods.sidecarset.io"
	need := entry.Need{Name: "log", UID: "u1", Generation: 2}
	is := func(uid string, generation int64, entryName string) entry.Fact {
		return entry.Fact{Stored: true, UID: uid, Generation: generation, Entry: entryName}
	}
	var nothing entry.Fact
	keeps, drops := entry.Verdict{}, entry.Verdict{Drop: true}
	tests := map[string]struct {
		fact              entry.Fact
		after             time.Duration // the read began so long after the last review was seen
		wasStored, in, to bool          // seen stored before the read; selectors in use; moved to a proven entry
		want              entry.Verdict
	}{
		"(a) it has moved to a proven entry":              {fact: is("u1", 2, there), to: true, want: drops},
		"(a) a later generation has moved":                {fact: is("u1", 3, there), to: true, want: drops},
		"(a) it has moved, and that is not proven":        {fact: is("u1", 2, there), after: time.Hour, in: true, want: keeps}, // C11
		"(a) its selectors can have no entry":             {fact: is("u1", 2, ""), want: drops},
		"(a) it is stored here":                           {fact: is("u1", 2, here), after: time.Hour, wasStored: true, in: true, to: true, want: keeps}, // C10
		"(a) an older generation has other selectors":     {fact: is("u1", 1, there), wasStored: true, in: true, to: true, want: keeps},                  // C1
		"(b) it was stored and is gone":                   {fact: nothing, wasStored: true, in: true, want: drops},
		"(b) it was stored, and another UID is":           {fact: is("u2", 1, here), wasStored: true, in: true, want: drops},
		"(b) another UID is, and this one may be coming":  {fact: is("u2", 7, there), in: true, to: true, want: keeps},       // C6
		"(b) it was seen stored only after the read":      {fact: nothing, after: time.Second, in: true, want: keeps},        // C19
		"(c) it is not stored, in time":                   {fact: nothing, after: 90*time.Second - 1, in: true, want: keeps}, // C14
		"(c) it is not stored, too late":                  {fact: nothing, after: 90 * time.Second, in: true, want: drops},
		"(c) new selectors, in time":                      {fact: nothing, after: 2*time.Second - 1, want: keeps},
		"(c) new selectors, too late":                     {fact: nothing, after: 2 * time.Second, want: drops},
		"(c) another UID is stored, too late":             {fact: is("u2", 1, here), after: 90 * time.Second, in: true, want: drops}, // C7
		"(c) an older generation, in time":                {fact: is("u1", 1, here), after: 89 * time.Second, in: true, want: keeps},
		"(c) an update was refused: it is lowered":        {fact: is("u1", 1, here), after: 90 * time.Second, in: true, want: entry.Verdict{Lower: 1}}, // C4
		"(c) a move was refused: it is lowered, then (a)": {fact: is("u1", 1, there), after: 2 * time.Second, to: true, want: entry.Verdict{Lower: 1}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.fact.Began = noon.Add(tc.after)
			c := entry.Case{Entry: here, Need: need, Fact: tc.fact, WasStored: tc.wasStored, First: noon, InUse: tc.in, Moved: tc.to}
			if got := c.Judge(); got != tc.want {
				t.Errorf("verdict %+v, want %+v", got, tc.want)
			}
			if c.First = (time.Time{}); c.Judge().Lower > 0 || c.Judge().Drop && tc.after > 0 {
				t.Errorf("verdict %+v for a review that the leader has not seen", c.Judge())
			}
		})
	}
}

// C5: a retry does not inherit the timer of its predecessor.
func TestEachReviewBeginsTheTimerAnew(t *testing.T) {
	t.Parallel()
	e := entryOf(t, sidecarSet("log", "web"))
	var slots [entry.Slots]*entry.Slot
	review := func() {
		s := slots[e.Slot()]
		if s == nil {
			s = bare(t, e.Slot())
		}
		next, _ := s.Review([]entry.Entry{e}, none, 0, settings())
		slots[e.Slot()] = stored(t, next)
	}
	seen := entry.Reviews{}
	first := func() time.Duration { return seen.First(e.Name, e.Needs[0]).Sub(noon) }
	review()
	seen.Observe(&slots, noon)
	seen.Observe(&slots, noon.Add(time.Second))
	if got := first(); got != 0 {
		t.Errorf("seen at noon, and remembered for %v later", got)
	}
	slots[e.Slot()] = stored(t, slots[e.Slot()].Reconcile(nil, nil, keep, true, settings()).Next)
	seen.Observe(&slots, noon.Add(2*time.Second))
	if got := first(); got != 0 {
		t.Errorf("a write by the leader has moved it by %v", got)
	}
	review()
	seen.Observe(&slots, noon.Add(89*time.Second))
	if got := first(); got != 89*time.Second {
		t.Errorf("after another review it is remembered for %v", got)
	}
	slots[e.Slot()] = nil
	seen.Observe(&slots, noon.Add(90*time.Second))
	if len(seen) != 0 {
		t.Errorf("%v is remembered of a slot that is gone", seen)
	}
	for after, want := range map[time.Duration]time.Duration{0: 90 * time.Second, 80 * time.Second: 10 * time.Second, time.Hour: 0} {
		if got := entry.Wait(noon, noon.Add(after), true); got != want {
			t.Errorf("after %v it waits for %v, want %v", after, got, want)
		}
	}
}
