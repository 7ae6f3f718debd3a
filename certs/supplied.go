package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
)

// maxSkew is by how much the clocks of API servers may be behind this one. Other issuers do not back-date. So a new leaf is served
// only when it is that old, as long as the one before it is valid.
const maxSkew = 5 * time.Minute

// supply is the place where another program puts key pairs.
type supply interface {
	// load returns the key pair that is there now. The error says what is missing and what to do.
	load(ctx context.Context) (material, error)
	// String names the place in messages.
	String() string
}

// material is a key pair and the CAs to trust, in PEM.
type material struct{ cert, key, ca []byte }

// Supplied is a Source of certificates that another program makes: cert-manager, or the program that mounts files. It serves what
// it finds; if what it found before is better, it continues to serve that. Its methods are safe for concurrent use.
//
// Its bundle has the supplied CAs. It also has, for Options.Overlap, the CAs that were supplied or published before.
type Supplied struct {
	leaves
	from       supply
	serverName string
	roots      roots
}

var _ Source = &Supplied{}

func newSupplied(from supply, published *Published, serverName string, opts Options) *Supplied {
	s := &Supplied{from: from, serverName: serverName, roots: roots{overlap: opts.Overlap}}
	s.leaves = leaves{opts: opts, published: published, origin: from, load: s.load, look: func() {
		if certificates, observed := published.certificates(); observed {
			s.roots.adopt(certificates) // what was published before
		}
	}}
	return s
}

// Bundle returns what clients must trust. It is nil until there is material and the published bundles have been observed.
func (s *Supplied) Bundle() []byte {
	return s.roots.bundle(s.served.Load())
}

// load takes over what is supplied. If it fails, it changes nothing.
func (s *Supplied) load(ctx context.Context) error {
	loaded, err := s.from.load(ctx)
	if err != nil {
		return err
	}
	now := s.opts.ServerClock.Now()
	leaf, cas, err := loaded.parse(s.serverName, now)
	if err != nil {
		return fmt.Errorf("reading the serving certificate from %s: %w", s.from, err)
	}
	current := s.served.Load()
	good := current != nil && now.Round(0).Before(current.Leaf.NotAfter)
	if good && now.Round(0).After(leaf.Leaf.NotAfter) {
		return fmt.Errorf("reading the serving certificate from %s: it expired at %s, so the one from before is served",
			s.from, leaf.Leaf.NotAfter.Format(time.RFC3339))
	}
	s.roots.set(cas) // before the leaf is served, so that its CA is published
	certificateNotAfter.WithLabelValues("ca").Set(float64(leaf.issuer.NotAfter.Unix()))
	switch {
	case current != nil && current.Leaf.Equal(leaf.Leaf):
		s.offer(nil) // the material that was held back is gone
		return nil
	case good && now.Round(0).Before(seasonedAt(leaf.Leaf)):
		log.FromContext(ctx).V(1).Info("Serving the old certificate until clocks that are behind accept the new one", "until", seasonedAt(leaf.Leaf))
		return nil
	}
	s.offer(leaf)
	s.adopt(ctx, now)
	return nil
}

// seasonedAt returns when an API server accepts the certificate even if its clock is behind.
func seasonedAt(cert *x509.Certificate) time.Time {
	return cert.NotBefore.Add(min(maxSkew, cert.NotAfter.Sub(cert.NotBefore)/10))
}

// parse checks that the parts belong together, without regard to the time, and that none is truncated.
func (m material) parse(serverName string, now time.Time) (*servingLeaf, []*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(m.cert, m.key)
	if err != nil {
		return nil, nil, fmt.Errorf("%s and %s are not a certificate and its key: %w", signingCertKey, signingKeyKey, err)
	}
	cas, err := ParseBundle(m.ca)
	if err == nil && len(cas) == 0 {
		err = errors.New("there is no certificate")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", bundleKey, err)
	}
	for _, ca := range cas {
		if err = Verify(&pair, encodeCertificate(ca), serverName, withinLife(pair.Leaf, now)); err == nil {
			return &servingLeaf{Certificate: &pair, issuer: ca}, cas, nil
		}
	}
	return nil, nil, fmt.Errorf("checking %s against %s: %w", signingCertKey, bundleKey, err)
}
