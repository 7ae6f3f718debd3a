package bench

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/sidecarset/operator/test/rounds"
)

// Both handlers do the same job: they give a Pod the same sidecars.
func TestComparatorGivesTheSamePods(t *testing.T) {
	sets := sidecarSets(100)
	ours, comparator := newOurs(sets), newComparator(sets)
	for _, c := range cases {
		t.Run(c.String(), func(t *testing.T) {
			before := c.pod(ours)
			got, want := admit(ours, before), admit(comparator, before)
			if !equality.Semantic.DeepEqual(decoded[corev1.Pod](want), decoded[corev1.Pod](got)) {
				t.Errorf("Pod (-comparator +ours):\n%s", cmp.Diff(string(want), string(got)))
			}
			if changed := string(before) != string(got); changed != (c.kind == matched) {
				t.Errorf("changed = %t", changed)
			}
		})
	}
}

// allowances are the highest costs of one admission. Allocations and bytes are the same on every
// machine. If you raise a bound, say why in the commit. Bounds are a tenth above what was
// measured.
var allowances = map[scenario]cost{
	{"9KB", matched}:   {allocs: 100, bytes: 7_400},
	{"9KB", none}:      {allocs: 35, bytes: 1_100},
	{"9KB", repeated}:  {allocs: 111, bytes: 9_500},
	{"60KB", matched}:  {allocs: 136, bytes: 18_500},
	{"60KB", none}:     {allocs: 35, bytes: 1_100},
	{"60KB", repeated}: {allocs: 147, bytes: 22_500},
}

func TestAdmissionStaysWithinItsAllowance(t *testing.T) {
	rounds.NeedExactMemory(t)
	for _, count := range []int{1, 1000} {
		ours := newOurs(sidecarSets(count))
		for _, c := range cases {
			t.Run(fmt.Sprintf("%s/%d", c, count), func(t *testing.T) {
				got, want := measure(200, call(ours, c.review(ours))), allowances[c]
				if got.allocs > want.allocs || got.bytes > want.bytes {
					t.Errorf("one admission costs %.0f allocations and %.0f bytes, allowed are %.0f and %.0f", got.allocs, got.bytes, want.allocs, want.bytes)
				}
			})
		}
	}
}

// The parts of target P1 that are exact on any machine.
func TestAllowanceBesideTheComparator(t *testing.T) {
	rounds.NeedExactMemory(t)
	sets := sidecarSets(100)
	handler := newOurs(sets)
	body := scenario{"9KB", matched}.review(handler)
	theirs, ours := measure(50, call(newComparator(sets), body)), measure(50, call(handler, body))
	if ours.bytes*40 > theirs.bytes || ours.allocs*30 > theirs.allocs {
		t.Errorf("one admission costs %.0f bytes and %.0f allocations, the comparator's %.0f and %.0f: want 1/40 and 1/30", ours.bytes, ours.allocs, theirs.bytes, theirs.allocs)
	}
}

// BenchmarkAdmission compares both handlers, with 100 SidecarSets.
func BenchmarkAdmission(b *testing.B) {
	sets := sidecarSets(100)
	ours, comparator := newOurs(sets), newComparator(sets)
	for _, c := range cases {
		b.Run(c.String(), func(b *testing.B) {
			body := c.review(ours)
			calls := []func(){call(ours, body), call(comparator, body)}
			inTurns(b, []string{"ours", "comparator"}, calls)
			for i, name := range []string{"ours", "comparator"} {
				b.ReportMetric(measure(20, calls[i]).allocs, name+"-allocs")
			}
		})
	}
}

// BenchmarkNumberOfSidecarSets compares the operator's handler among few and among many SidecarSets.
func BenchmarkNumberOfSidecarSets(b *testing.B) {
	for _, kind := range []kind{matched, none} {
		b.Run(string(kind), func(b *testing.B) {
			var names []string
			var calls []func()
			for _, count := range []int{1, 100, 1000, 10_000} {
				ours := newOurs(sidecarSets(count))
				names = append(names, fmt.Sprint(count))
				calls = append(calls, call(ours, scenario{"9KB", kind}.review(ours)))
			}
			inTurns(b, names, calls)
		})
	}
}

// BenchmarkAChange is from the change of one of 1,000 SidecarSets to a snapshot with the change.
func BenchmarkAChange(b *testing.B) {
	sets := sidecarSets(1000)
	compiled := compile(sets)
	inTurns(b, []string{"change"}, []func(){func() {
		copy(compiled[500:], compile(sets[500:501]))
		snapshot(compiled)
	}})
}

// inTurns calls the functions in turns. It reports the median CPU time of a call of each, in µs, and the median of the
// ratio to the first one, within a turn.
func inTurns(b *testing.B, names []string, calls []func()) {
	b.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const turn = 10 * time.Millisecond
	counts, times, ratios := make([]int, len(calls)), make([][]float64, len(calls)), make([][]float64, len(calls))
	for i, call := range calls {
		call() // warms pools
		counts[i] = max(1, int(turn/max(cpuOf(call), time.Microsecond)))
	}
	for b.Loop() {
		for i, call := range calls {
			took := cpuOf(func() {
				for range counts[i] {
					call()
				}
			})
			times[i] = append(times[i], took.Seconds()*1e6/float64(counts[i]))
			ratios[i] = append(ratios[i], times[i][len(times[i])-1]/times[0][len(times[i])-1])
		}
	}
	b.ReportMetric(0, "ns/op") // not printed
	for i, name := range names {
		b.ReportMetric(median(times[i]), name+"-µs")
		b.ReportMetric(median(ratios[i]), name+"-times")
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// cpuOf returns the CPU time that the process takes for a function.
func cpuOf(do func()) time.Duration {
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	do()
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	return time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
}

// cost is what one operation takes.
type cost struct{ allocs, bytes float64 }

// measure runs an operation n times on one processor and returns the cost of one, which is exact: nothing
// else may run in the process, and pools are warm.
func measure(n int, operation func()) cost {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	operation() // warm pools
	runtime.GC()
	operation()
	collect := debug.SetGCPercent(-1) // a collection would empty pools
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		operation()
	}
	runtime.ReadMemStats(&after)
	debug.SetGCPercent(collect)
	return cost{float64((after.Mallocs - before.Mallocs) / uint64(n)), float64((after.TotalAlloc - before.TotalAlloc) / uint64(n))}
}
