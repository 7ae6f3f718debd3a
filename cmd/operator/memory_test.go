package operator

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestTheMemoryLimitFollowsWhatIsAlive(t *testing.T) {
	for live, want := range map[uint64]int64{0: leastMemory, 10 << 20: leastMemory, 20 << 20: 46 << 20, 100 << 20: 166 << 20} {
		if got := memoryLimit(live); got != want {
			t.Errorf("with %d MiB alive the limit is %d MiB, want %d", live>>20, got>>20, want>>20)
		}
	}
	runtime.GC()
	if live := liveHeap(); live == 0 {
		t.Error("nothing is alive")
	}
}

func TestTheMemoryLimitFollowsNoPeak(t *testing.T) {
	var alive lately
	steps := []struct {
		alive uint64
		ticks int
		want  uint64
	}{{10, 6, 10}, {60, 5, 10}, {60, 1, 60}, {70, 5, 60}, {20, 1, 20}}
	for i, step := range steps {
		var got uint64
		for range step.ticks {
			got = alive.least(step.alive)
		}
		if got != step.want {
			t.Errorf("step %d: got %d, want %d", i, got, step.want)
		}
	}
}

func TestTheMemoryLimitIsTheUsersIfThereIsOne(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	run := func() int64 {
		debug.SetMemoryLimit(math.MaxInt64)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := boundGarbage(ctx); err != nil {
			t.Fatal(err)
		}
		return debug.SetMemoryLimit(-1)
	}
	if got := run(); got == math.MaxInt64 {
		t.Error("no limit was set")
	}
	t.Setenv("GOMEMLIMIT", "1GiB")
	if got := run(); got != math.MaxInt64 {
		t.Errorf("the limit was set to %d", got)
	}
}
