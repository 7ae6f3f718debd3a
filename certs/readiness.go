package certs

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"

	"k8s.io/utils/clock"
)

// Readiness says whether API servers accept the certificate that this replica serves.
type Readiness struct {
	source     Source
	published  *Published
	serverName string
	clock      clock.PassiveClock
}

// NewReadiness returns a Readiness for a Source whose leaf is to be valid for serverName. A nil clock is the real one.
func NewReadiness(source Source, published *Published, serverName string, clk clock.PassiveClock) *Readiness {
	if clk == nil {
		clk = clock.RealClock{}
	}
	return &Readiness{source: source, published: published, serverName: serverName, clock: clk}
}

// Ready returns nil when the leaf that is served now is valid for the server name, and verifies in every clientConfig of every target
// against the bundle that was last observed there. Otherwise the error says everything that is missing. It does no I/O.
func (r *Readiness) Ready(context.Context) error {
	cert, err := r.source.GetCertificate(&tls.ClientHelloInfo{ServerName: r.serverName})
	if err != nil {
		return err
	}
	leaf, err := leafOf(cert)
	if err == nil {
		err = leaf.VerifyHostname(r.serverName)
	}
	if err != nil {
		return fmt.Errorf("checking the serving certificate: %w", err)
	}
	return r.published.Verify(cert, r.clock.Now())
}

// Check is Ready as a healthz.Checker.
func (r *Readiness) Check(req *http.Request) error { return r.Ready(req.Context()) }
