package inplace_test

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/test/rounds"
)

// run lets seconds pass, with writes and crashes, and checks at each of them that
// a Pod is not said to be back early.
func (w *world) run(t *testing.T, seconds int, mayBeEarly func(*world) bool) {
	t.Helper()
	for range seconds {
		w.tick()
		if w.chance(4) && (w.done() || w.chance(30)) {
			w.write()
		}
		if w.mark == nil {
			continue
		}
		p := inplace.Observe(w.pod, *w.mark)
		if p.Settled(w.now).State() == inplace.Back && !w.done() && !mayBeEarly(w) {
			t.Fatalf("said to be back early, with %+v\n%s", p, w.story())
		}
		if p = p.Settled(w.now); w.owed && !p.Over() && !p.InFlight() && !mayBeEarly(w) {
			t.Fatalf("takes no place of the budget, with %+v\n%s", p, w.story())
		}
	}
}

// rest lets the node work with nothing else happening. Then the Pod must be back,
// if a leader that starts now looks at it.
func (w *world) rest(t *testing.T) {
	t.Helper()
	w.crashes, w.longPulls, w.badTags = false, false, false
	for range 300 + 4*w.grace {
		w.tick()
	}
	if w.hasBadTag() {
		if p := inplace.Observe(w.pod, *w.mark); p.Settled(w.now.Add(time.Hour)).State() != inplace.Moving {
			t.Fatalf("an image cannot be pulled, and the Pod is said to be %+v\n%s", p, w.story())
		}
		return
	}
	if !w.done() {
		t.Fatalf("the model is wrong: the kubelet is not done\n%s", w.story())
	}
	if w.mark == nil {
		return
	}
	p := inplace.Observe(w.pod, *w.mark)
	settled := w.now.Add(time.Duration(2*w.grace+12) * time.Second)
	if p.Settled(settled).State() != inplace.Back || p.Settled(settled).InFlight() {
		t.Fatalf("never said to be back: %+v\n%s", p, w.story())
	}
	w.appBroken = true
	for range 10 {
		w.tick()
	}
	p = inplace.Observe(w.pod, *w.mark)
	if p.Settled(settled).State() != inplace.Broken || p.Settled(settled).InFlight() {
		t.Fatalf("the application broke, and the Pod is said to be %+v\n%s", p, w.story())
	}
}

var seeds = flag.Int("seeds", 150, "how many histories of each kind the model of a kubelet has")

// Observe is never early, and always ends.
func TestObserveFollowsTheKubelet(t *testing.T) {
	tests := map[string]struct {
		options
		// mayBeEarly names the worlds in which Observe may be early.
		mayBeEarly func(*world) bool
	}{
		"crashes, writes while the kubelet works, short pulls": {options{observes: true, crashes: true, grace: 5}, neverEarly},
		"the same with probes":                                 {options{observes: true, crashes: true, probes: true, grace: 5}, neverEarly},
		"the same without observedGeneration":                  {options{crashes: true, grace: 5}, neverEarly},
		"the same with a long grace":                           {options{observes: true, crashes: true, grace: 30}, neverEarly},
		"the same without grace":                               {options{crashes: true, observes: true}, neverEarly},
		"long pulls":                                           {options{observes: true, longPulls: true, grace: 30}, uncertain},
		"long pulls without observedGeneration":                {options{longPulls: true, probes: true, grace: 30}, uncertain},
		"long pulls and crashes":                               {options{observes: true, longPulls: true, crashes: true, grace: 5}, uncertainOrRaced},
		"long pulls, bad tags, probes, and all else":           {options{observes: true, longPulls: true, crashes: true, probes: true, badTags: true, grace: 5}, uncertainOrRaced},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(rounds.Of(*seeds, *seeds/10)) {
				w := newWorld(seed, tc.options)
				w.run(t, 400, tc.mayBeEarly)
				w.rest(t)
			}
		})
	}
}

func (w *world) hasBadTag() bool {
	return slices.ContainsFunc(sidecars, func(name string) bool { return isBad(container(w.pod, name).Image) })
}

// story is what happened last.
func (w *world) story() string { return strings.Join(w.log[max(0, len(w.log)-40):], "\n") }

func neverEarly(*world) bool         { return false }
func uncertain(w *world) bool        { return w.uncertain() }
func uncertainOrRaced(w *world) bool { return w.uncertain() || w.raced }
