package rollout_test

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/test/rounds"
)

// One changed Pod is one step of a rollout: a Pod is taken, written, seen in flight and seen
// back. BenchmarkChangedPod does this at several sizes. Its cost grows with the logarithm of
// the Pods that wait.
func BenchmarkChangedPod(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("%d Pods", n), func(b *testing.B) { benchmarkSteps(b, update{MaxUnavailable: share("10")}, n) })
		b.Run(fmt.Sprintf("%d Pods by priority", n), func(b *testing.B) {
			benchmarkSteps(b, update{MaxUnavailable: share("10"), PriorityStrategy: byOrder("ord")}, n)
		})
	}
}

// With scatterStrategy, a pass costs as much as there are Pods that wait.
func BenchmarkScatter(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("%d Pods", n), func(b *testing.B) {
			benchmarkSteps(b, update{MaxUnavailable: share("10"), ScatterStrategy: scatterOver("zone", "*")}, n)
		})
	}
}

func benchmarkSteps(b *testing.B, u update, n int) {
	pods := manyPods(n)
	q := queue(strategy(u), pods...)
	byName := make(map[string]rollout.Pod, n)
	for _, p := range pods {
		byName[p.Name] = p
	}
	var version uint64
	b.ReportAllocs()
	start := cpu(b)
	for b.Loop() {
		takes := q.Next(1, version)
		version++
		q.Written(takes[0], version, true)
		p := byName[takes[0].Name]
		p.Way, p.InFlight = inplace.Current, true
		q.Set(p)
		p.InFlight = false
		q.Set(p)
		p.Way = inplace.Images // outdated again and the last of all, so that as many Pods wait as before
		p.Order.ReadySince = int64(1e9 - version)
		q.Set(p)
	}
	b.ReportMetric(float64(cpu(b)-start)/float64(version), "cpu-ns/op")
}

// cpu is the processor time of this process, which does not include other processes on the
// machine.
func cpu(b *testing.B) int64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// The status of a Pod that waits changes: it becomes ready, or restarts.
func BenchmarkStatusOfAWaitingPod(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("%d Pods", n), func(b *testing.B) {
			pods := manyPods(n)
			q := queue(strategy(update{}), pods...)
			i := 0
			b.ReportAllocs()
			start := cpu(b)
			for b.Loop() {
				p := &pods[i*7919%n]
				p.Ready = !p.Ready
				p.Order.Restarts++
				q.Set(*p)
				q.Next(0, 0)
				i++
			}
			b.ReportMetric(float64(cpu(b)-start)/float64(i), "cpu-ns/op")
		})
	}
}

// The content changes, and all Pods wait.
func BenchmarkEveryPodBecomesOutdated(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("%d Pods", n), func(b *testing.B) {
			pods := manyPods(n)
			i, start := 0, cpu(b)
			for b.Loop() {
				queue(strategy(update{}), pods...)
				i++
			}
			b.ReportMetric(float64(cpu(b)-start)/float64(i*n), "cpu-ns/Pod")
		})
	}
}

func manyPods(n int) []rollout.Pod {
	pods := make([]rollout.Pod, n)
	for i := range pods {
		pods[i] = ready(i * 7919 % n)
		pods[i].Labels = podstate.MakeLabelSet(map[string]string{"ord": fmt.Sprint("web-", i%500), "zone": fmt.Sprint(i % 5)})
	}
	return pods
}

// A step allocates as little among many Pods as among few. BenchmarkChangedPod has
// the time.
func TestAStepAllocatesTheSameHoweverManyPodsWait(t *testing.T) {
	rounds.NeedExactMemory(t)
	allocations := func(n int) float64 {
		q := queue(strategy(update{MaxUnavailable: share("10")}), manyPods(n)...)
		return testing.AllocsPerRun(100, func() {
			takes := q.Next(1, 0)
			q.Retry(takes[0])
			q.Report()
		})
	}
	if small, large := allocations(100), allocations(50_000); large > small {
		t.Errorf("a step allocates %v times among 50,000 Pods, %v times among 100", large, small)
	}
}

// P7: a Pod that waits takes a few hundred bytes, and a Pod that is updated takes none.
func TestMemoryOfWaitingPods(t *testing.T) {
	rounds.NeedExactMemory(t)
	const n = 20_000
	pods := manyPods(n)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	q := queue(strategy(update{MaxUnavailable: share("10")}), pods...)
	perPod := (heap() - before) / n
	t.Logf("%d bytes for each Pod that waits", perPod)
	if perPod > 400 {
		t.Errorf("a Pod that waits takes %d bytes, want at most 400", perPod)
	}
	done := slices.Clone(pods)
	before = heap()
	for i := range done {
		done[i].Way = inplace.Current
		q.Set(done[i])
	}
	q.Next(1, 0)
	if after := heap(); before-after < n*perPod*9/10 {
		t.Errorf("once all Pods are done, %d bytes of %d are given back", before-after, n*perPod)
	}
	runtime.KeepAlive(q)
	runtime.KeepAlive(pods)
}
