// Package certs supplies the certificate that the operator's webhooks serve and the CA bundle that API servers check it against.
//
// It knows how a CA is made, kept in a Secret, rotated and retired, how a leaf is issued and renewed, and which objects tell API
// servers which CAs to trust. Pure functions of certificates and a time decide (pki.go, authority.go). The rest reads the API server,
// calls these functions, and writes.
//
// It does not know what is served with the certificate, which webhook entries there are, or
// what they call: it writes the caBundle of the objects that it looks after, and no other
// field of them. It does not elect a leader: the manager that runs the leader's runnables
// does. Private keys and the content of Secrets never reach a log, an event or an error.
//
// # How a CA is rotated without a failed call
//
//  1. The leader makes the next CA and stores it in the Secret in addition to the one that signs. The bundle holds both.
//  2. The leader writes that bundle into every object. It waits until it has read it back from all of them, and then for
//     Options.Settle, so that every API server has noticed.
//  3. Only then does the next CA become the signing one. Each replica notices, issues itself a new leaf, and serves it once no API
//     server that accepts the old leaf would refuse the new one.
//  4. When the last leaf signed by the old CA must have expired, the old CA leaves the bundle.
//
// Each step is one write to the Secret with a resourceVersion precondition, and is derived from what is stored. If the leader dies
// between two steps, the next leader continues from the stored state.
package certs

import (
	"context"
	"crypto/tls"
)

// Source supplies the serving certificate and the CA bundle that clients must trust. There is an implementation for each mode:
// self-managed, cert-manager, and mounted files.
type Source interface {
	// Start keeps the certificate and the bundle current until ctx ends. Then it returns nil. A manager runs it on every replica.
	Start(ctx context.Context) error
	// Refresh reads the material again. A new leader does that before it publishes anything, so that it does not replace the bundle
	// of its predecessor by an older one.
	Refresh(ctx context.Context) error
	// GetCertificate answers TLS handshakes. It never blocks on I/O. Until there is a certificate, it returns an error that says why.
	// The result is shared; callers must not change it.
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Bundle returns the PEM bundle to publish, or nil while there is none. During a rotation it has the old and the new CA, so that
	// no handshake fails between the two writes. Equal bundles are equal bytes. The result is shared; callers must not change it.
	Bundle() []byte
}
