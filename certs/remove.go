package certs

import (
	"crypto/x509"
	"slices"
	"time"
)

// removal decides what the leader publishes: the CAs of the Secret, and for a while every CA that is found in a bundle. It is new
// with each leader, so a new leader begins the wait again.
type removal struct {
	wait  time.Duration
	named string    // the CAs of the Secret, as a bundle
	since time.Time // when every bundle began to hold them; zero while one does not
}

// want returns the bundle to publish, the oldest CA first. named are the CAs of the Secret; published are the bundles that are not
// empty. now is a time of this process, with a monotonic reading.
func (r *removal) want(named []*x509.Certificate, published [][]*x509.Certificate, now time.Time) []byte {
	exact := EncodeBundle(oldestFirst(slices.Clone(named)))
	lacking := slices.ContainsFunc(published, func(bundle []*x509.Certificate) bool {
		return slices.ContainsFunc(named, func(ca *x509.Certificate) bool { return !slices.ContainsFunc(bundle, ca.Equal) })
	})
	switch {
	case lacking:
		r.since = time.Time{}
	case r.since.IsZero() || r.named != string(exact):
		r.since = now
	}
	r.named = string(exact)
	if !r.since.IsZero() && now.Sub(r.since) >= r.wait {
		return exact
	}
	return EncodeBundle(oldestFirst(slices.Concat(named, slices.Concat(published...))))
}
