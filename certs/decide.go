package certs

import (
	"errors"
	"time"
)

// standing is all that decides what a replica does with its leaves at one moment. Reading, and doing what was decided, are elsewhere.
type standing struct {
	loading     error // why the last attempt to read material failed
	notObserved error // why it is not known what bundles hold
	elsewhere   error // the objects of the manifests call another server

	served, next *judged // nil if there is none
	sameCA       bool    // both are of one CA

	known      time.Duration // since this replica first read these CAs
	age        time.Duration // since the material was last written
	first      bool          // no API server was ever told to trust another CA
	wasReady   bool          // the replica was ready before
	wasRefused bool          // some bundle has refused a leaf that it served
}

// judged is a leaf as published bundles judge it.
type judged struct {
	accepted int           // bundles
	refused  []error       // one for each bundle that is not empty
	lasts    time.Duration // for how long all of these have accepted it; negative while one does not
	endsSoon bool          // within a day, or the last quarter of its life
	young    bool          // another program issued it just now, so the clocks of API servers may be behind it
}

// state is what a replica does.
type state string

const (
	noLeaf   state = "waits for a certificate, and refuses handshakes"
	takeNext state = "serves the next leaf from now on"
	unready  state = "serves a leaf, and is not ready"
	ready    state = "serves a leaf, and is ready"
)

var (
	// errEmpty says that no API server trusts anything.
	errEmpty = errors.New("checking the serving certificate: its caBundle is empty until the leader writes it, in every object")
	// errWait says that an API server may still use a bundle that refuses the certificate.
	errWait = errors.New("waiting until every API server is sure to accept the serving certificate: the CAs have changed a short while ago")
	// errHeld says that API servers may not have noticed yet which CA is published.
	errHeld  = errors.New("API servers may not have noticed yet that the CA of the next certificate is published")
	errYoung = errors.New("API servers' clocks may be behind, and the next certificate has only just begun")
)

// decide returns the state, and why it is not ready. held is why the next leaf is not served yet.
func (s standing) decide(t Times) (is state, why, held error) {
	if s.next != nil {
		if held = s.obstacle(t); held == nil {
			return takeNext, nil, nil
		}
	}
	switch is = unready; {
	case s.served == nil:
		is, why = noLeaf, s.loading
	case s.notObserved != nil:
		why = s.notObserved
	case s.elsewhere != nil && !s.wasReady:
		why = s.elsewhere
	case s.served.accepted == 0 && len(s.served.refused) == 0:
		why = errEmpty
	case s.served.accepted == 0:
		why = errors.Join(s.served.refused...)
	case s.wasReady, s.known >= t.Settled:
		is = ready
	case len(s.served.refused) > 0:
		why = errors.Join(s.served.refused...)
	case s.first, s.age > t.Settled && !s.wasRefused, s.served.lasts >= t.Hold:
		is = ready
	default:
		why = errWait
	}
	return is, why, held
}

// obstacle returns why the next leaf is not served yet.
func (s standing) obstacle(t Times) error {
	switch {
	case s.served == nil, s.served.endsSoon:
		return nil
	case s.next.young:
		return errYoung
	case s.sameCA:
		return nil
	case s.notObserved != nil:
		return s.notObserved
	case s.served.accepted == 0 && len(s.next.refused) < len(s.served.refused): // calls fail now
		return nil
	case len(s.next.refused) == 0 && s.next.lasts >= t.Hold:
		return nil
	}
	return errors.Join(append(s.next.refused, errHeld)...)
}
