package certs

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// CertManagerFieldOwner is the field manager under which objects are declared to cert-manager.
const CertManagerFieldOwner = "sidecarset-operator"

// CertManagerOptions configure what is asked of cert-manager.
type CertManagerOptions struct {
	// Namespace is where everything is declared.
	Namespace string
	// Subject is what the serving certificate vouches for.
	Subject Subject
	// CALifetime and LeafLifetime are how long certificates are valid; each is renewed after two thirds of it.
	CALifetime, LeafLifetime time.Duration
}

// CertManager declares to cert-manager what the operator needs of it.
type CertManager struct {
	client client.Client
	opts   CertManagerOptions
}

// NewCertManager returns a CertManager. The client must not read from a cache.
func NewCertManager(c client.Client, opts CertManagerOptions) *CertManager {
	return &CertManager{client: c, opts: opts}
}

// Declare applies the issuers and certificates, taking back what somebody else has changed in them. What is as declared stays as it is.
func (m *CertManager) Declare(ctx context.Context) error {
	for _, d := range m.opts.declarations() {
		if err := m.client.Apply(ctx, d.apply, client.FieldOwner(CertManagerFieldOwner), client.ForceOwnership); err != nil {
			return fmt.Errorf("declaring %s %s/%s: %w", d.kind, m.opts.Namespace, d.name, err)
		}
	}
	return nil
}
