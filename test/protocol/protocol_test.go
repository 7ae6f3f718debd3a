package protocol

import (
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/sidecarset/operator/test/rounds"
)

var (
	runs  = flag.Uint64("protocol.runs", 150, "how many seeds the protocol is tried with")
	tries = flag.Uint64("protocol.mistakes", 400, "how many seeds may go by until a mistake is found")
	first = flag.Uint64("protocol.seed", 0, "the first seed")
)

const (
	workFor = 300 * time.Second
	// restFor is the longest time until all dependencies of SidecarSets that were not stored are gone.
	restFor = 120 * time.Second
)

// live runs a simulation with clients and maybe faults, from a seed.
func live(seed uint64, wrong mistake, faults, tracing bool) *simulation {
	w := newSimulation(seed, wrong, faults)
	w.tracing = tracing
	for at := w.upTo(3 * time.Second); at < workFor; at += w.between(50*time.Millisecond, 2*time.Second) + w.upTo(w.temper.rest) {
		w.after(at, w.client)
	}
	for at := time.Duration(0); len(w.temper.misfortunes) > 0 && at < workFor+100*time.Second; at += w.between(time.Second, 40*time.Second) {
		w.after(at, func() { pick(w, w.temper.misfortunes)(w) })
	}
	for len(w.agenda) > 0 && w.violation == "" && w.agenda[0].at <= workFor+restFor {
		next := w.agenda[0]
		w.agenda = w.agenda[1:]
		w.now = next.at
		next.do()
	}
	return w
}

func TestNoPodIsMissed(t *testing.T) {
	total, runs := map[string]int{}, rounds.Of(*runs, *runs/10)
	for seed := *first; seed < *first+runs; seed++ {
		w := live(seed, none, true, false)
		if w.violation != "" {
			trace := live(seed, none, true, true).trace
			t.Fatalf("seed %d: %s\n%s", seed, w.violation, strings.Join(trace[max(0, len(trace)-120):], "\n"))
		}
		for what, n := range w.counts {
			total[what] += n
		}
	}
	t.Logf("%d runs: %v", runs, total)
}

// Each mistake misses a Pod, and the simulation finds it.
func TestTheSimulationFindsEveryMistake(t *testing.T) {
	for wrong, seed := range firstSeeds {
		t.Run(string(wrong), func(t *testing.T) {
			seed := max(seed, *first)
			for end := seed + *tries; seed < end; seed++ {
				if w := live(seed, wrong, true, false); w.violation != "" {
					t.Logf("seed %d: %s", seed, w.violation)
					return
				}
			}
			t.Errorf("no Pod is missed in %d runs", *tries)
		})
	}
}

// Without faults, each SidecarSet becomes Ready, and no other dependency remains.
func TestWithoutFaultsNothingIsLeft(t *testing.T) {
	for seed := range rounds.Of(uint64(20), 2) {
		w := live(seed, none, false, false)
		if w.violation != "" {
			t.Fatalf("seed %d: %s", seed, w.violation)
		}
		if w.counts["refused Pods"] > 0 || w.counts["not promised"] > 0 {
			t.Errorf("seed %d: Pods were refused, or nothing promised: %v", seed, w.counts)
		}
		dependencies := 0
		for _, shard := range w.stored.shards {
			for _, of := range shard.Dependencies {
				dependencies += len(of)
			}
			if len(shard.Webhooks()) != len(shard.Dependencies) {
				t.Errorf("seed %d: shard %d has webhooks %v and needs %v", seed, shard.Index, shard.Webhooks(), shard.Dependencies)
			}
		}
		for name, s := range w.stored.sets {
			if s.ready != s.gen || !w.stored.shards[s.webhook.Shard(w.namespace())].HasDependency(s.webhook.Name, s.dependency()) || dependencies != len(w.stored.sets) {
				t.Errorf("seed %d: %s is not Ready, or needs are left: %d", seed, name, dependencies)
			}
		}
	}
}
