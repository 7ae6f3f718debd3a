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
// that is alive for a moment, above all of requests, adds no room for garbage: leastRoom
// stays. If the administrator sets GOMEMLIMIT, boundGarbage does nothing.
func boundGarbage(ctx context.Context) error {
	if os.Getenv("GOMEMLIMIT") != "" {
		<-ctx.Done()
		return nil
	}
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	var alive lately
	for {
		now := liveHeap()
		debug.SetMemoryLimit(memoryLimit(alive.least(now), now))
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

const (
	// notHeap is what stacks and the runtime take.
	notHeap = 16 << 20
	// leastRoom is the least room for garbage. Without it, memory that grows and stays
	// alive reaches the bound before it raises the bound, and the runtime collects garbage
	// all the time. That is the case on a leader while many SidecarSets are created.
	leastRoom = 10 << 20
)

// memoryLimit leaves room for garbage: half as much as has stayed alive, and leastRoom
// above what is alive now.
func memoryLimit(stayed, now uint64) int64 {
	return max(leastMemory, int64(stayed)*3/2+notHeap, int64(now)+leastRoom+notHeap)
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
