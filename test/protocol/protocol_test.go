package protocol

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/test/rounds"
)

var (
	runs     = flag.Uint64("protocol.runs", 150, "how many seeds the protocol is tried with")
	mistakes = flag.Uint64("protocol.mistakes", 400, "how many seeds may go by until a mistake is found")
	first    = flag.Uint64("protocol.seed", 0, "the first seed")
)

const (
	workFor = 200 * time.Second
	// restFor is the longest time until all needs of SidecarSets that were not stored are gone.
	restFor = 120 * time.Second
)

// live runs a world with clients and maybe faults, from a seed.
func live(seed uint64, r rules, faults, tracing bool) *world {
	w := newWorld(seed, r, faults)
	workFor := workFor
	if w.temper.ambush {
		workFor *= 2
	}
	w.tracing = tracing
	for at := w.upTo(3 * time.Second); at < workFor; {
		w.after(at, w.client)
		at += w.between(50*time.Millisecond, 2*time.Second)
		if w.chance(20) {
			at += w.upTo(30 * time.Second)
		}
		at += w.upTo(w.temper.rest)
	}
	for at := time.Duration(0); faults && at < workFor+100*time.Second; at += w.between(time.Second, 10*time.Second) {
		w.after(at, w.misfortune)
	}
	w.run(workFor + restFor)
	return w
}

// client is one random action of a user.
func (w *world) client() {
	switch roll := w.rng.IntN(100); {
	case roll < 35:
		w.admit(w.anyWrite(false))
	case roll < 68:
		w.admit(w.anyWrite(true))
	case roll < 74:
		w.delete(pick(w, w.temper.names))
	case roll < 80:
		again := w.anyWrite(false)
		w.delete(again.name)
		w.after(w.upTo(100*time.Millisecond), func() { w.admit(again) })
	default:
		w.createPod(pick(w, w.temper.values))
	}
}

// The kinds of faults.
const (
	pauses = iota
	crashes
	stalls
	lists
	restarts
	elections
	strangers
	goesBack
	resets
	misfortunes
)

// misfortune is one fault.
func (w *world) misfortune() {
	p := w.recent()
	kind := w.rng.IntN(misfortunes)
	if !w.temper.faults[kind] || p.ended {
		return
	}
	switch kind {
	case pauses:
		if p.paused > w.now {
			return
		}
		d := w.fault(40 * time.Second)
		w.note("%s is stopped for %v", p.name, d)
		p.paused = w.now + d
		if p.leads() {
			w.disturb(p.paused)
		}
		for range 8 { // in the last second before the process runs again
			w.after(d-min(d, w.upTo(time.Second)), func() { w.createPod(pick(w, w.temper.values)) })
		}
	case crashes:
		w.crash(p)
	case stalls:
		d := w.fault(60 * time.Second)
		f := pick(w, w.followers)
		w.note("the watch of %s stalls for %v", f.name, d)
		f.stall(d)
	case lists:
		w.note("%s lists SidecarSets again", p.name)
		p.relistSets(w.upTo(5 * time.Second))
	case restarts:
		if s := pick(w, w.servers); !s.down {
			s.restart(w.upTo(30 * time.Second))
		}
	case elections:
		w.elect()
	case strangers:
		many := 1
		if w.chance(10) {
			many = 30
		}
		for range many {
			w.forge(pick(w, w.temper.names))
		}
	case goesBack:
		s, value := pick(w, w.servers), pick(w, w.temper.values)
		for i := range entry.Slots {
			if slices.ContainsFunc([]string{"app", "tier"}, func(key string) bool { return slices.Contains(values[key][i], value) }) {
				s.goBack(i)
			}
		}
		w.after(w.upTo(100*time.Second), func() { w.createPod(value) })
	case resets:
		if w.chance(20) {
			value := pick(w, w.temper.values)
			for i := range entry.Slots {
				if slices.Contains(values["app"][i], value) {
					w.resetSlot(i)
				}
			}
		}
	}
}

// crash ends a process, and starts another one. If the process led, another process leads later.
func (w *world) crash(p *process) {
	w.note("%s crashes", p.name)
	p.ended, p.sets.ended, p.rest.ended = true, true, true
	w.followers = slices.DeleteFunc(w.followers, func(f *follower) bool { return f.ended })
	w.addProcess()
	if p.leads() {
		p.leader.ended = true
		w.disturb(w.now + 17*time.Second)
		w.after(w.upTo(17*time.Second), w.elect)
	}
}

// holds fails the test if any of the runs misses a Pod.
func holds(t *testing.T, r rules) {
	t.Helper()
	var total counts
	runs := rounds.Of(*runs, *runs/10)
	for seed := *first; seed < *first+runs; seed++ {
		w := live(seed, r, true, false)
		total.add(w.counts)
		if w.violation != "" {
			t.Fatalf("seed %d: %s\n%s", seed, w.violation, story(seed, r))
		}
	}
	t.Logf("%d runs: %+v", runs, total)
}

// story returns the last events of the run with a seed.
func story(seed uint64, r rules) string {
	trace := live(seed, r, true, true).trace
	return strings.Join(trace[max(0, len(trace)-120):], "\n")
}

// Each of these misses a Pod, and the simulation finds it.
func TestTheSimulationFindsEveryBrokenProtocol(t *testing.T) {
	tests := map[string]struct {
		seed  uint64 // the first seed that the test tries: earlier ones find nothing
		wrong func(*rules)
	}{
		"authors are never warned":                                   {0, func(r *rules) { r.noBarrier = true }},
		"a review that raises a need keeps the number":               {0, func(r *rules) { r.noSerialRaise = true }},
		"a move adds its need to the entry that it leaves":           {0, func(r *rules) { r.wrongSlot = true }},
		"a review writes nothing if the need is there":               {20, func(r *rules) { r.noAlwaysWrite = true }},
		"a review replaces the need of another UID":                  {0, func(r *rules) { r.replaceUID = true }},
		"a replica uses its own copy of the slot":                    {0, func(r *rules) { r.staleNeeds = true }},
		"a replica compares generations only":                        {0, func(r *rules) { r.ignoreUID = true }},
		"a replica remembers that something was not stored":          {0, func(r *rules) { r.keepNotStored = true }},
		"a call joins a read that had begun":                         {0, func(r *rules) { r.joinRead = true }},
		"a later call takes back what an earlier one injected":       {0, func(r *rules) { r.downgrade = true }},
		"a call decides about the SidecarSets of its slot only":      {0, func(r *rules) { r.ruleSlot = true }},
		"the leader drops by its snapshot":                           {0, func(r *rules) { r.dropWithoutRead = true }},
		"a need with other selectors goes whatever its generation":   {0, func(r *rules) { r.otherSelectors = true }},
		"a need goes because another UID is stored":                  {150, func(r *rules) { r.otherUID = true }},
		"a review does not start the timer anew":                     {30, func(r *rules) { r.timerByNeed = true }},
		"a generation that is not stored is dropped, not lowered":    {500, func(r *rules) { r.dropNotLower = true }},
		"an entry goes before the one that it moved to is in use":    {50, func(r *rules) { r.moveEarly = true }},
		"needs of stored SidecarSets go":                             {0, func(r *rules) { r.dropSatisfied = true }},
		"needs of selectors in use go after two seconds":             {0, func(r *rules) { r.shortTimer = true }},
		"only the snapshot says which selectors are in use":          {0, func(r *rules) { r.inUseBySnapshot = true }},
		"a failed read says that nothing is stored":                  {0, func(r *rules) { r.failedIsNone = true }},
		"the leader concludes with a read older than what it knows":  {0, func(r *rules) { r.readOlderThanKnown = true }},
		"slots that API servers went back from are not written anew": {60, func(r *rules) { r.goesBackUnmended = true }},
		"serials are counters":                                       {50, func(r *rules) { r.counterReset = true }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var r rules
			tc.wrong(&r)
			for seed := max(tc.seed, *first); seed < max(tc.seed, *first)+*mistakes; seed++ {
				if w := live(seed, r, true, false); w.violation != "" {
					t.Logf("seed %d: %s: %s", seed, name, w.violation)
					return
				}
			}
			t.Errorf("%s: no Pod is missed in %d runs", name, *mistakes)
		})
	}
}

func TestNoPodIsMissed(t *testing.T) { holds(t, rules{}) }

func TestNoPodIsMissedWhileFlagsAreRolledOut(t *testing.T) { holds(t, rules{mixedFlags: true}) }

// Without faults, each SidecarSet becomes Ready, and no other need remains.
func TestWithoutFaultsNothingIsLeft(t *testing.T) {
	for seed := range uint64(20) {
		w := live(seed, rules{}, false, false)
		if w.violation != "" {
			t.Fatalf("seed %d: %s", seed, w.violation)
		}
		if w.counts.refused > 0 || w.counts.warnings > 0 {
			t.Errorf("seed %d: %d Pods were refused, %d authors warned", seed, w.counts.refused, w.counts.warnings)
		}
		for name, s := range w.stored.sets {
			if at := w.stored.slots[s.entry.Slot()]; s.ready != s.gen || !at.Holds(s.entry.Name, s.need()) {
				t.Errorf("seed %d: %s is not Ready", seed, name)
			}
		}
		for _, slot := range w.stored.slots {
			for name, needs := range slot.Needs {
				for _, n := range needs {
					if s := w.stored.sets[n.Name]; s == nil || s.need().UID != n.UID || int64(s.gen) != n.Generation || s.entry.Name != name {
						t.Errorf("seed %d: slot %d: need %v of %s is left", seed, slot.Index, n, name)
					}
				}
			}
			if len(slot.Entries()) != len(slot.Needs) {
				t.Errorf("seed %d: slot %d has entries %v and needs %v", seed, slot.Index, slot.Entries(), slot.Needs)
			}
		}
	}
}
