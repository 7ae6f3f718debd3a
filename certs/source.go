// Package certs supplies the certificate that the operator's webhooks serve and the CA bundle that API servers check it against.
//
// It knows how a CA is made, kept in a Secret, rotated and retired; how a leaf is issued and renewed; which objects tell API servers
// whom to trust, and what stands in them now. Everything it decides is decided by pure functions of certificates and a time (pki.go,
// authority.go); the rest reads the API server, asks them, and writes.
//
// It refuses to know what is served with the certificate, which webhook entries there should be, or where they point: it writes the
// caBundle of the objects it is told to look after and nothing else in them, never a url or a service. It does not elect a leader;
// whoever adds the leader's runnables to a manager decides who that is. Private keys and the content of Secrets never reach a log,
// an event or an error.
//
// # How a CA is rotated without a failed call
//
//  1. The leader makes the next CA and stores it in the Secret beside the one that signs. The bundle holds both.
//  2. The leader writes that bundle into every object and waits until it has read it back from all of them, and then for
//     Options.Settle more, so that every API server has taken notice.
//  3. Only then does the next CA become the signing one. Each replica notices, issues itself a new leaf, and serves it once no API
//     server that accepts the old leaf would refuse the new one.
//  4. When the last leaf signed by the old CA must have expired, the old CA leaves the bundle.
//
// Each step is one write to the Secret with a resourceVersion precondition, and each is derived from what is stored. A leader that
// dies between two steps leaves a state from which the next leader goes on.
package certs

import (
	"context"
	"crypto/tls"
)

// Source supplies the serving certificate and the CA bundle that clients must trust. All ways to obtain them sit behind it: issued
// here, by cert-manager, or mounted as files.
type Source interface {
	// Run keeps the material current until ctx ends. It returns nil when that is why it ended.
	Run(ctx context.Context) error
	// GetCertificate serves TLS handshakes. It never blocks on I/O: until there is a certificate it returns an error that says
	// why there is none. The result is shared and not to be changed.
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Bundle returns the PEM bundle to publish, or nil while there is none. During a rotation it holds the old and the new CA, so
	// that no handshake fails between the two writes. Equal bundles are equal bytes. The result is shared and not to be changed.
	Bundle() []byte
}

// refresher is a Source that can be asked to look again at where its material comes from. A new leader asks before it publishes
// anything, so that it cannot put an older bundle in place of the one that its predecessor wrote last.
type refresher interface {
	Refresh(ctx context.Context) error
}
