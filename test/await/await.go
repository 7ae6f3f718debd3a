// Package await waits in tests for events that happen sooner or later. Only tests import it.
package await

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// Patience bounds waits that are not claims about time. On a busy machine, milliseconds may
// become minutes.
const Patience = 5 * time.Minute

// Eventually calls probe again and again until it returns nil. After Patience, it fails the test
// with the last error of probe.
func Eventually(t testing.TB, what string, probe func(context.Context) error) {
	t.Helper()
	Within(t, Patience, what, probe)
}

// Within is Eventually with another time: because the wait is longer, or because the test is
// about the time.
func Within(t testing.TB, within time.Duration, what string, probe func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := Until(ctx, probe); err != nil {
		t.Fatalf("%s: not within %s: %v", what, within, err)
	}
}

// That is Eventually for a condition that gives no error.
func That(t testing.TB, done func() bool, what string) {
	t.Helper()
	Eventually(t, what, func(context.Context) error {
		if !done() {
			return errors.New("it is not so")
		}
		return nil
	})
}

// Pauses between probes grow with the wait: a probe often takes 10 ms of an API server,
// which tests share. A pause is at least three times as long as the probe before it, up to
// slowPause: a probe that runs kubectl takes 0.1 to 0.4 s of a processor.
const (
	leastPause = 50 * time.Millisecond
	mostPause  = 300 * time.Millisecond
	slowPause  = time.Second
)

// Until calls probe again and again until it returns nil. It returns the last error of probe if
// ctx ends first.
func Until(ctx context.Context, probe func(context.Context) error) error {
	var last error
	begin, pause := time.Now(), 2*time.Millisecond
	for {
		asked := time.Now()
		err := probe(ctx)
		if err == nil {
			return nil
		}
		slow := min(3*time.Since(asked), slowPause)
		if ctx.Err() == nil || last == nil {
			last = err // if the deadline ended this probe, the error of the probe before says more
		}
		pause = min(2*pause, max(time.Since(begin)/16, leastPause), mostPause)
		select {
		case <-time.After(max(pause, slow)):
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", last, context.Cause(ctx))
		}
	}
}
