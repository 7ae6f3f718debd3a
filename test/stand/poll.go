package stand

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Patience bounds waits that are no claim about time. What takes milliseconds
// may take long where the machine is busy with something else.
const Patience = time.Minute

// Eventually asks again and again until probe returns nil, and fails the test
// with its last answer if Patience is over.
func Eventually(t testing.TB, what string, probe func(context.Context) error) {
	t.Helper()
	Within(t, Patience, what, probe)
}

// Within is Eventually with a time of its own: because more is to be waited for,
// or because the time is what the test is about.
func Within(t testing.TB, within time.Duration, what string, probe func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := poll(ctx, probe); err != nil {
		t.Fatalf("%s: not within %s: %v", what, within, err)
	}
}

// poll returns the last answer of probe when ctx ends first.
func poll(ctx context.Context, probe func(context.Context) error) error {
	ticks := time.NewTicker(50 * time.Millisecond)
	defer ticks.Stop()
	var last error
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err // a probe that the deadline cut short knows less than the one before
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", last, context.Cause(ctx))
		}
	}
}
