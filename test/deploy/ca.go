package deploy

import (
	"testing"
	"time"

	"github.com/sidecarset/operator/certs"
)

// NextCA returns a CA for the place of the next one in the CA Secret. The leader rotates the CA when a third of the
// life of the next one is over: here, after that time.
func NextCA(t testing.TB, after time.Duration) certs.KeyPair {
	t.Helper()
	const day, life = 24 * time.Hour, 365 * 24 * time.Hour
	next, err := certs.IssueCA("next", time.Now().Add(after+day-(life+day)/3), life)
	if err != nil {
		t.Fatal(err)
	}
	return next
}
