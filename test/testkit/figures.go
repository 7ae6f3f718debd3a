package testkit

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
)

// Scaled is how much a test does: short, or long with CHAOS=long.
func Scaled[T any](short, long T) T {
	if os.Getenv("CHAOS") == "long" {
		return long
	}
	return short
}

// Report prints figures in one line that is easy to find.
func Report(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Logf("FIGURES %s: %s", t.Name(), fmt.Sprintf(format, args...))
}

// Each calls do for every item, in at most parallel calls at the same time.
func Each[T any](items []T, parallel int, do func(T) error) error {
	var workers sync.WaitGroup
	queue := make(chan T, len(items))
	for _, item := range items {
		queue <- item
	}
	close(queue)
	errs := make([]error, parallel)
	for i := range errs {
		workers.Go(func() {
			for item := range queue {
				errs[i] = errors.Join(errs[i], do(item))
			}
		})
	}
	workers.Wait()
	return errors.Join(errs...)
}
