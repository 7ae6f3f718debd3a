package certs

import (
	"crypto/x509"
	"slices"
	"sync"
	"time"
)

// roots are the CAs that clients must trust if another program makes the certificates: those that come with the material, and for
// some time those that came before. No message says when the last replica has noticed a new CA. So a former CA stays for a time
// that is long compared with the time that noticing takes. roots is safe for concurrent use.
type roots struct {
	overlap time.Duration

	mu      sync.Mutex
	current []*x509.Certificate
	former  []formerCA
	adopted bool
}

// formerCA is a CA that the material no longer names.
type formerCA struct {
	*x509.Certificate
	// since is when this replica noticed, by the monotonic clock. That clock does not count the time in which the machine slept, when
	// no replica could notice, and it does not change when the clock is set.
	since time.Time
}

// set replaces the CAs that the material names now.
func (r *roots) set(current []*x509.Certificate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.current
	r.current = current
	r.keep(before)
}

// adopt adds, once, what was published before this replica had any material. The former leader published it for replicas that may
// still serve leaves of it.
func (r *roots) adopt(published []*x509.Certificate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.adopted {
		r.adopted = true
		r.keep(published)
	}
}

// keep records which of the CAs are former ones. A CA that has come back is not a former one.
func (r *roots) keep(cas []*x509.Certificate) {
	for _, ca := range cas {
		r.former = append(r.former, formerCA{ca, time.Now()})
	}
	seen := map[string]bool{}
	r.former = slices.DeleteFunc(r.former, func(f formerCA) bool {
		known := seen[string(f.Raw)] || slices.ContainsFunc(r.current, f.Equal) // the first of equal ones, which is the oldest
		seen[string(f.Raw)] = true
		return known
	})
}

// bundle returns what to publish, the oldest CA first, or nil while that is unknown. It contains the issuer of the served leaf, if
// there is one.
func (r *roots) bundle(served *servingLeaf) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.current) == 0 || !r.adopted {
		return nil
	}
	r.former = slices.DeleteFunc(r.former, func(f formerCA) bool {
		return time.Since(f.since) > r.overlap && (served == nil || !f.Equal(served.issuer))
	})
	bundle := slices.Clone(r.current)
	for _, f := range r.former {
		bundle = append(bundle, f.Certificate)
	}
	return EncodeBundle(oldestFirst(bundle))
}
