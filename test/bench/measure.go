package bench

import (
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
)

// Cost is what one operation takes.
type Cost struct {
	Allocs, Bytes float64
}

// Measure runs operation n times on one processor and returns the cost of one.
// Allocations and bytes are exact: nothing else may run in the process, and
// pools are warm. CPU is only comparable with figures of the same minute.
func Measure(n int, operation func()) Cost {
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
	return Cost{
		Allocs: float64((after.Mallocs - before.Mallocs) / uint64(n)),
		Bytes:  float64((after.TotalAlloc - before.TotalAlloc) / uint64(n)),
	}
}

// MeasureCPU runs operation n times on one processor and returns the process's
// CPU time of one, with the garbage collected as it comes.
func MeasureCPU(n int, operation func()) time.Duration {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	start := processCPU()
	for range n {
		operation()
	}
	return (processCPU() - start) / time.Duration(n)
}

func processCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0 // never fails for the process itself
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
