package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
)

// Readiness reports whether API servers accept the certificate that this replica serves.
type Readiness struct {
	source     Source
	published  *Published
	serverName string
	servers    *ServerClock
	been       atomic.Bool // ready
}

// NewReadiness returns a Readiness for a Source whose leaf must be valid for serverName, by the clocks of the servers.
func NewReadiness(source Source, published *Published, serverName string, servers *ServerClock) *Readiness {
	return &Readiness{source: source, published: published, serverName: serverName, servers: servers}
}

// Ready returns nil if this replica can answer calls: the served leaf is valid for the server name, and API servers accept it.
// Otherwise the error says everything that is missing. It does no I/O.
//
// A replica becomes ready when the leaf verifies in every clientConfig of every target, against the bundle that was last observed
// there, and its clock agrees with the API servers'. From then on it is ready while one clientConfig accepts the leaf, by the API
// servers' clocks. If an administrator breaks one object, the calls that others cause can still be answered; if the clock is set
// wrong, all calls can.
func (r *Readiness) Ready(ctx context.Context) error {
	if r.been.Load() {
		cert, err := r.certificate()
		if err != nil {
			return err
		}
		return r.published.Accepted(cert, r.servers.Now())
	}
	if err := errors.Join(r.Trusted(ctx), r.servers.Differs()); err != nil {
		return err
	}
	r.been.Store(true)
	return nil
}

// Trusted returns nil if the served leaf verifies in every clientConfig of every target, by the API servers' clocks, whether or not
// this replica is ready. It does no I/O.
func (r *Readiness) Trusted(context.Context) error {
	cert, err := r.certificate()
	if err != nil {
		return err
	}
	return r.published.Verify(cert, r.servers.Now())
}

// certificate returns the served leaf, if it is valid for the server name.
func (r *Readiness) certificate() (*tls.Certificate, error) {
	cert, err := r.source.GetCertificate(&tls.ClientHelloInfo{ServerName: r.serverName})
	if err != nil {
		return nil, err
	}
	leaf, err := leafOf(cert)
	if err == nil {
		err = leaf.VerifyHostname(r.serverName)
	}
	if err != nil {
		return nil, fmt.Errorf("checking the serving certificate: %w", err)
	}
	return cert, nil
}

// Check is Ready as a healthz.Checker.
func (r *Readiness) Check(req *http.Request) error { return r.Ready(req.Context()) }
