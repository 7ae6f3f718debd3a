package bench

import (
	"cmp"
	"slices"
	"time"
)

// Counts are the numbers of SidecarSets that Compare runs with.
var Counts = []int{1, 100, 1000, 10_000}

// Case is one admission that is measured.
type Case struct {
	Size  string
	Kind  Kind
	Count int // of SidecarSets
}

// Figures are the costs of one Case.
type Figures struct {
	Cost
	rounds []time.Duration // CPU time, by round
}

// CPU is the median over rounds.
func (f Figures) CPU() time.Duration { return median(f.rounds) }

// CPURatio is the CPU time of f divided by that of g: the median over rounds of the ratio within
// a round, because both have the same conditions within a round.
func (f Figures) CPURatio(g Figures) float64 { return medianRatio(f.rounds, g.rounds) }

// Results hold the figures of both handlers.
type Results struct {
	Cases            []Case
	Comparator, Ours map[Case]Figures
}

// Compare measures every case with both handlers. In each round all cases take their turn. Cases
// that are compared are next to each other, so that other work of the machine slows them down
// equally. budget is the CPU time for one case in one round.
func Compare(rounds int, budget time.Duration) Results {
	results := Results{Comparator: map[Case]Figures{}, Ours: map[Case]Figures{}}
	runs := results.prepare()
	for _, r := range runs {
		r.calibrate(budget)
	}
	for range rounds {
		for _, r := range runs {
			r.cpu = append(r.cpu, MeasureCPU(r.calls, r.do))
		}
	}
	for _, r := range runs {
		r.into[r.of] = Figures{Cost: Measure(20, r.do), rounds: r.cpu}
	}
	return results
}

// prepare makes the runs of all cases: by size and kind, and then by handler, because growth is
// compared between runs of the same handler.
func (r *Results) prepare() []*run {
	var runs []*run
	sets := map[int][]map[string]any{}
	handlers := map[int][]Handler{}
	for _, count := range Counts {
		sets[count] = SidecarSets(count)
		handlers[count] = Handlers(sets[count])
	}
	for _, size := range Sizes {
		for _, kind := range Kinds {
			for i, into := range []map[Case]Figures{r.Comparator, r.Ours} {
				for _, count := range Counts {
					of := Case{size.Name, kind, count}
					call := NewCall(handlers[count][i].Handler, Body(sets[count], size, kind))
					runs = append(runs, &run{of: of, into: into, call: call})
					if i == 0 {
						r.Cases = append(r.Cases, of)
					}
				}
			}
		}
	}
	return runs
}

// run is one case of one handler.
type run struct {
	of    Case
	into  map[Case]Figures
	call  *Call
	calls int // per round
	cpu   []time.Duration
}

func (r *run) do() { r.call.Do() }

// calibrate finds out how many calls fill the budget.
func (r *run) calibrate(budget time.Duration) {
	r.calls = 1
	for MeasureCPU(r.calls, r.do)*time.Duration(r.calls) < budget/4 {
		r.calls *= 2
	}
	r.calls *= 4
}

func median[T cmp.Ordered](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// medianRatio is the median over rounds of the ratio within a round.
func medianRatio[T ~int64 | ~float64](over, under []T) float64 {
	ratios := make([]float64, len(over))
	for i := range ratios {
		ratios[i] = float64(over[i]) / float64(under[i])
	}
	return median(ratios)
}

// StoreChange is the CPU time from the change of one SidecarSet among count to a snapshot with
// the change, as the median over rounds.
func StoreChange(count, rounds int) time.Duration {
	sets := SidecarSets(count)
	sidecarSets := CompileAll(sets)
	changed := count / 2
	var times []time.Duration
	for range rounds {
		times = append(times, MeasureCPU(5, func() {
			copy(sidecarSets[changed:], CompileAll(sets[changed:changed+1]))
			BuildStore(sidecarSets)
		}))
	}
	return median(times)
}
