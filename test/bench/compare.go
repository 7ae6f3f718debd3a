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

// Figures are the costs of one Case: CPU time is the median over rounds.
type Figures struct {
	CPU time.Duration
	Cost
}

// Results hold the figures of both handlers.
type Results struct {
	Cases            []Case
	Comparator, Ours map[Case]Figures
}

// Compare measures every case with both handlers. In each round all cases take
// their turn, so that whatever else the machine does hits all of them alike.
// budget is the CPU time for one case in one round.
func Compare(rounds int, budget time.Duration) Results {
	results := Results{Comparator: map[Case]Figures{}, Ours: map[Case]Figures{}}
	var runs []*run
	for _, count := range Counts {
		sets := SidecarSets(count)
		handlers := Handlers(sets)
		for _, size := range Sizes {
			for _, kind := range Kinds {
				of := Case{size.Name, kind, count}
				results.Cases = append(results.Cases, of)
				body := Body(sets, size, kind)
				runs = append(runs,
					&run{of: of, into: results.Comparator, call: NewCall(handlers[0], body)},
					&run{of: of, into: results.Ours, call: NewCall(handlers[1], body)})
			}
		}
	}
	for _, r := range runs {
		r.calibrate(budget)
	}
	for range rounds {
		for _, r := range runs {
			r.cpu = append(r.cpu, MeasureCPU(r.calls, r.do))
		}
	}
	for _, r := range runs {
		r.into[r.of] = Figures{CPU: median(r.cpu), Cost: Measure(20, r.do)}
	}
	return results
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

// CatalogChange is the CPU time from one changed SidecarSet among count to a
// snapshot that has it, the median over rounds.
func CatalogChange(count, rounds int) time.Duration {
	sets := SidecarSets(count)
	programs := CompileAll(sets)
	changed := count / 2
	var times []time.Duration
	for range rounds {
		times = append(times, MeasureCPU(5, func() {
			copy(programs[changed:], CompileAll(sets[changed:changed+1]))
			BuildCatalog(programs)
		}))
	}
	return median(times)
}
