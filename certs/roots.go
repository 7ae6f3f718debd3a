package certs

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"slices"
	"sync"
	"time"
)

// roots are what clients must trust where others make the certificates: the CAs that come with the material, and for a while those
// that came before. Nobody tells when the last replica has noticed a new CA, so a former one stays for a time that is long compared
// to how long noticing takes. It is safe for concurrent use.
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
	// since is when that was noticed, by the monotonic clock: it does not count the time in which the machine slept, when no replica
	// could notice, and it does not change when the clock is set.
	since time.Time
}

// set says which CAs the material names now.
func (r *roots) set(current []*x509.Certificate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.current
	r.current = current
	r.keep(before)
}

// adopt takes over what has been published by others before this replica knew anything, once. A leader that has died, and its memory
// with it, left it there for replicas that may still serve by it.
func (r *roots) adopt(published []*x509.Certificate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.adopted {
		r.adopted = true
		r.keep(published)
	}
}

// keep remembers which of the CAs are former ones. One that has come back is none.
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

// bundle returns what to publish, the oldest CA first, or nil while that is not known. The issuer of the leaf that is served, if any,
// stays in it.
func (r *roots) bundle(served *servingLeaf) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.current) == 0 || !r.adopted {
		return nil
	}
	r.former = slices.DeleteFunc(r.former, func(f formerCA) bool {
		return time.Since(f.since) > r.overlap && (served == nil || !f.Equal(served.issuer))
	})
	former := make([]*x509.Certificate, 0, len(r.former))
	for _, f := range r.former {
		former = append(former, f.Certificate)
	}
	bundle := MergeBundles(r.current, former)
	sortByAge(bundle)
	return EncodeBundle(bundle)
}

// sortByAge orders certificates so that a change of who signs changes nothing that is published.
func sortByAge(bundle []*x509.Certificate) {
	slices.SortStableFunc(bundle, func(a, b *x509.Certificate) int {
		return cmp.Or(a.NotBefore.Compare(b.NotBefore), bytes.Compare(a.Raw, b.Raw))
	})
}
