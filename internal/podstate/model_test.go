package podstate

import (
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sidecarset/operator/test/rounds"
)

// run lets seconds pass, with writes and crashes. At each of them, the Pod must not be said to
// be back early, and must take a place of the budget until it is.
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
		now, p := w.now.Unix(), w.entry.Observe(w.pod)
		if p.Back(now) && !w.done() && !mayBeEarly(w) {
			t.Fatalf("said to be back early, with %+v\n%s", p, w.story())
		}
		if w.owed && !p.Back(now) && !p.Counts(now) && !mayBeEarly(w) {
			t.Fatalf("takes no place of the budget, with %+v\n%s", p, w.story())
		}
	}
}

// rest lets the node work with nothing else happening. Then the Pod must be back, if a leader
// that starts now looks at it. If an image has broken it, it must take a place of the budget.
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
		if p.Back(now + 3600) {
			t.Fatalf("an image cannot be pulled, and the Pod is said to be back\n%s", w.story())
		}
		return
	case !w.done():
		t.Fatalf("the model is wrong: the kubelet is not done\n%s", w.story())
	case w.breaksApp():
		if p.Back(now+3600) || p.Counts(now) != p.Disturbed {
			t.Fatalf("the image has broken the app, and the Pod is said to be %+v\n%s", p, w.story())
		}
		return
	case !p.Back(now) || p.Counts(now):
		t.Fatalf("never said to be back: %+v\n%s", p, w.story())
	}
	for _, c := range []struct {
		after  int64
		counts bool
	}{{599, true}, {601, false}} {
		pod := w.pod.DeepCopy()
		ready := &pod.Status.Conditions[0]
		ready.Status, ready.LastTransitionTime.Time = corev1.ConditionFalse, time.Unix(int64(p.Started)+c.after, 0)
		if got := w.entry.Observe(pod); got.Counts(now+3600) != (c.counts && p.Disturbed) {
			t.Fatalf("%d s after the start the app broke, and the Pod is said to be %+v\n%s", c.after, got, w.story())
		}
	}
}

var seeds = flag.Int("seeds", 150, "how many histories of each kind the model of a kubelet has")

// A Pod is back not before and not later than its kubelet has carried out the update.
func TestWrittenFollowsTheKubelet(t *testing.T) {
	never := func(*world) bool { return false }
	hasty := func(w *world) bool { return w.hasty }
	raced := func(w *world) bool { return w.hasty || w.raced }
	tests := map[string]struct {
		options
		// mayBeEarly names the worlds in which a Pod may be said to be back early.
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
		"images that break the app after 10 s":                 {options{observes: true, probes: true, breaks: 10 * time.Second, grace: 5}, never},
		"images that break the app after a minute, crashes":    {options{observes: true, probes: true, crashes: true, breaks: time.Minute, grace: 5}, never},
		"images that break the app after 5 minutes":            {options{observes: true, probes: true, breaks: 5 * time.Minute, badTags: true, grace: 5}, never},
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
