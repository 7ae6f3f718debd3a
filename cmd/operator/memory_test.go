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
	for _, c := range []struct{ stayed, now, want int }{
		{0, 0, 46}, {10, 10, 46}, {20, 20, 46}, {24, 24, 52}, {100, 100, 166},
		{10, 30, 56}, {14, 150, 176}, // what has come lately raises it by no more than itself
		{100, 20, 166},
	} {
		if got := memoryLimit(uint64(c.stayed)<<20, uint64(c.now)<<20) >> 20; got != int64(c.want) {
			t.Errorf("with %d MiB that stayed alive and %d MiB alive now the limit is %d MiB, want %d", c.stayed, c.now, got, c.want)
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
