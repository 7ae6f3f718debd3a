package certs

import (
	"errors"
	"time"
)

// verdict is what the published bundles say about a leaf.
type verdict struct {
	accepted int     // bundles
	refused  []error // one for each bundle that is not empty
}

// replaces reports whether a leaf of another CA is served now instead of the old one. held is for how long all bundles that are not
// empty have accepted the new one.
func (v verdict) replaces(old verdict, held, hold time.Duration) bool {
	if old.accepted == 0 && len(v.refused) < len(old.refused) {
		return true // calls fail now
	}
	return len(v.refused) == 0 && held >= hold
}

// standing is what a replica knows about the leaf that it serves.
type standing struct {
	verdict
	ready       bool          // the replica was ready before
	acceptedFor time.Duration // for how long all bundles that are not empty have accepted the leaf
	known       time.Duration // since this replica first read these CAs
	age         time.Duration // since the Secret was last written
	wasRefused  bool          // some bundle has refused a leaf of this process
	first       bool          // no API server was ever told to trust another CA
	elsewhere   error         // the objects of the manifests call another server
	notObserved error
}

// errEmpty says that no API server trusts anything.
var errEmpty = errors.New("checking the serving certificate: its caBundle is empty until the leader writes it, in every object")

// errWait says that an API server may still use a bundle that refuses the certificate.
var errWait = errors.New("waiting until every API server is sure to accept the serving certificate: the CAs have changed a short while ago")

// judge returns nil if the replica is ready: API servers accept its leaf.
func (s standing) judge(t Times) error {
	switch {
	case s.notObserved != nil:
		return s.notObserved
	case s.elsewhere != nil && !s.ready:
		return s.elsewhere
	case s.accepted == 0 && len(s.refused) == 0:
		return errEmpty
	case s.accepted == 0:
		return errors.Join(s.refused...)
	case s.ready, s.known >= t.Settled:
		return nil
	case len(s.refused) > 0:
		return errors.Join(s.refused...)
	case s.first, s.age > t.Settled && !s.wasRefused, s.acceptedFor >= t.Hold:
		return nil
	}
	return errWait
}
