package operator

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"time"
)

// leastMemory is what the Go runtime may use before it collects garbage more
// often than usual. Under attack more than that is alive: by what webhooks bound,
// the whole process stays below 256 MiB (webhooks/server/gate.go, webhooks/values.go).
const leastMemory = 72 << 20

// boundGarbage makes the runtime collect garbage sooner while there is a lot of
// it: by default it would let the heap of a short attack grow to twice what is
// alive in it. What stays alive, Pods' records on the leader above all, raises
// the bound; what is alive for a moment, requests above all, does not. A
// GOMEMLIMIT of the user's is left as it is.
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

// lately holds what was alive at the last ticks, the latest first.
type lately [6]uint64

// least adds what is alive now, and returns the least of all.
func (l *lately) least(now uint64) uint64 {
	copy(l[1:], l[:])
	l[0] = now
	return slices.Min(l[:])
}

// memoryLimit leaves half of what is alive for garbage, and 16 MiB for stacks
// and the runtime's own.
func memoryLimit(live uint64) int64 {
	return max(leastMemory, int64(live)*3/2+16<<20)
}

// liveHeap is what the last collection found alive.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}
