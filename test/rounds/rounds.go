// Package rounds says how much of an invariant a test tries: with -short less, and under the race
// detector nothing that it distorts. Only tests import it.
package rounds

import "testing"

// Of is all, or few with -short.
func Of[T any](all, few T) T {
	if testing.Short() {
		return few
	}
	return all
}

// NeedExactMemory skips a test that counts allocations or bytes under the race detector, which
// allocates too. make test runs the test without it.
func NeedExactMemory(t testing.TB) {
	t.Helper()
	if race {
		t.Skip("SKIP: the race detector allocates; make test counts without it")
	}
}
