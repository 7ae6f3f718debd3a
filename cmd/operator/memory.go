package operator

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"time"
)

// leastMemory is the memory that the Go runtime may use before it collects garbage
// more often than usual. Under attack more than that is alive. The bounds of webhooks
// keep the whole process below 256 MiB (webhooks/server/gate.go,
// webhooks/sidecarsets/values.go).
const leastMemory = 46 << 20

// boundGarbage makes the runtime collect garbage sooner while there is a lot of it. By
// default the heap could grow to twice what is alive during a short attack. Memory
// that stays alive, above all records of Pods on the leader, raises the bound. Memory
// that is alive for a moment, above all of requests, does not. If the administrator
// sets GOMEMLIMIT, boundGarbage does nothing.
func boundGarbage(ctx context.Context) error {
	if os.Getenv("GOMEMLIMIT") != "" {
		<-ctx.Done()
		return nil
	}
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	var alive lately
	for {
		debug.SetMemoryLimit(memoryLimit(alive.least(liveHeap())))
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
}

// lately holds how much was alive at the last ticks, the latest first.
type lately [6]uint64

// least adds how much is alive now, and returns the least of all.
func (l *lately) least(now uint64) uint64 {
	copy(l[1:], l[:])
	l[0] = now
	return slices.Min(l[:])
}

// memoryLimit leaves room for garbage, half as much as is alive, and 16 MiB for stacks
// and the runtime.
func memoryLimit(live uint64) int64 {
	return max(leastMemory, int64(live)*3/2+16<<20)
}

// liveHeap is how much the last collection found alive.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}
