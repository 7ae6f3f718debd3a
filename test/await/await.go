// Package await waits in tests for what comes sooner or later. It is imported by
// tests only.
package await

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// Patience bounds waits that are not claims about time. What takes milliseconds
// may take long where the machine is busy with something else.
const Patience = 3 * time.Minute

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
	if err := Until(ctx, probe); err != nil {
		t.Fatalf("%s: not within %s: %v", what, within, err)
	}
}

// That is Eventually for a question without reasons.
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

// Until asks again and again until probe returns nil. It returns the last answer
// if ctx ends first.
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
			last = err // a probe that the deadline cut short knows less than the one before
		}
		pause = min(2*pause, max(time.Since(begin)/16, leastPause), mostPause)
		select {
		case <-time.After(max(pause, slow)):
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", last, context.Cause(ctx))
		}
	}
}
