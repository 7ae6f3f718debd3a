package podstate

import (
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/rounds"
)

// run lets seconds pass, with writes and crashes. A write must not be said to be carried out
// before it is.
func (w *world) run(t *testing.T, seconds int, mayBeEarly func(*world) bool) {
	t.Helper()
	for range seconds {
		w.tick()
		if w.chance(4) && (w.done() || w.chance(30)) {
			w.write()
		}
		if w.entry == nil {
			continue
		}
		p := w.entry.Observe(w.pod)
		if p.IsCarriedOut(w.now.Unix()) && !w.done() && !mayBeEarly(w) {
			t.Fatalf("said to be carried out early, with %+v\n%s", p, w.story())
		}
	}
}

// rest lets the node work with nothing else happening. Then the write must be said to be carried
// out, if a leader that starts now looks at the Pod.
func (w *world) rest(t *testing.T) {
	t.Helper()
	w.crashes, w.longPulls, w.badTags = false, false, false
	for range 320 + 4*w.grace {
		w.tick()
	}
	if w.entry == nil {
		return
	}
	now, p := w.now.Unix(), w.entry.Observe(w.pod)
	switch {
	case slices.ContainsFunc(sidecars, func(name string) bool { return isBad(container(w.pod, name).Image) }):
		if p.Up && p.IsCarriedOut(now+3600) {
			t.Fatalf("an image cannot be pulled, and its container is said to run: %+v\n%s", p, w.story())
		}
	case !w.done():
		t.Fatalf("the model is wrong: the kubelet is not done\n%s", w.story())
	case !p.Up || !p.IsCarriedOut(now):
		t.Fatalf("never said to be carried out: %+v\n%s", p, w.story())
	case p.Started < p.At || int64(p.Started) > now:
		t.Fatalf("the containers are said to have started at another time: %+v\n%s", p, w.story())
	}
}

var seeds = flag.Int("seeds", 150, "how many histories of each kind the model of a kubelet has")

// A write is said to be carried out not before the kubelet has done that, and not never.
func TestWrittenFollowsTheKubelet(t *testing.T) {
	never := func(*world) bool { return false }
	hasty := func(w *world) bool { return w.hasty }
	raced := func(w *world) bool { return w.hasty || w.raced }
	tests := map[string]struct {
		options
		// mayBeEarly names the worlds in which that may be said early.
		mayBeEarly func(*world) bool
	}{
		"crashes, writes while the kubelet works, short pulls": {options{observes: true, crashes: true, grace: 5}, never},
		"the same with probes":                                 {options{observes: true, crashes: true, probes: true, grace: 5}, never},
		"the same without observedGeneration":                  {options{crashes: true, grace: 5}, never},
		"the same with a long grace":                           {options{observes: true, crashes: true, grace: 30}, raced},
		"the same without grace":                               {options{observes: true, crashes: true}, never},
		"long pulls":                                           {options{observes: true, longPulls: true, grace: 30}, hasty},
		"long pulls without observedGeneration":                {options{longPulls: true, probes: true, grace: 30}, hasty},
		"long pulls and crashes":                               {options{observes: true, longPulls: true, crashes: true, grace: 5}, raced},
		"long pulls, bad tags, probes, and all else":           {options{observes: true, longPulls: true, crashes: true, probes: true, badTags: true, grace: 5}, raced},
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

// story is what happened last.
func (w *world) story() string { return strings.Join(w.log[max(0, len(w.log)-40):], "\n") }
