package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
)

// maxSkew is by how much the clocks of API servers may be behind ours. Others do not back-date what they issue, so a new leaf is served
// only when it is that old, as long as the one before it is good.
const maxSkew = 5 * time.Minute

// supply is where somebody else puts key pairs.
type supply interface {
	// load returns what is there now. An error says what is missing, and what to do.
	load(ctx context.Context) (material, error)
	// String names the place for people.
	String() string
}

// material is a key pair and the CAs to trust, in PEM.
type material struct{ cert, key, ca []byte }

// Supplied is a Source of certificates that somebody else makes: cert-manager, or whoever mounts files. It serves what it finds, and
// what it found before while that is better. It is also a manager.Runnable that needs no leader. Its methods are safe for concurrent
// use.
//
// Its bundle is what was supplied, together with the CAs that were supplied or published before for as long as Options.Overlap.
type Supplied struct {
	leaves
	from       supply
	serverName string
	opts       Options
	roots      roots

	loading sync.Mutex // one at a time, so that an older reading does not replace a newer one
}

var _ Source = &Supplied{}

func newSupplied(from supply, published *Published, serverName string, opts Options) *Supplied {
	return &Supplied{
		leaves: leaves{published: published, settle: opts.Settle, poll: opts.Poll}, from: from, serverName: serverName, opts: opts,
		roots: roots{overlap: opts.Overlap},
	}
}

// NeedLeaderElection has a manager start it on every replica.
func (s *Supplied) NeedLeaderElection() bool { return false }

// Start is Run, for a manager.
func (s *Supplied) Start(ctx context.Context) error { return s.Run(ctx) }

// Run looks for new material until ctx ends. A failure is logged and tried again.
func (s *Supplied) Run(ctx context.Context) error {
	return s.keepCurrent(ctx, s.opts, s.Refresh, s.lookAtPublished)
}

// GetCertificate returns the leaf that is served, even if it has expired: whether to accept it is the client's to decide.
func (s *Supplied) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return s.get(s.from.String())
}

// Bundle returns what clients must trust. It is nil until material was found, and until it was seen what is published now.
func (s *Supplied) Bundle() []byte {
	return s.roots.bundle(s.served.Load())
}

// Refresh looks once for new material. An error leaves everything as it is.
func (s *Supplied) Refresh(ctx context.Context) error {
	s.loading.Lock()
	defer s.loading.Unlock()
	err := s.refresh(ctx)
	s.failed(err)
	s.lookAtPublished()
	return err
}

func (s *Supplied) refresh(ctx context.Context) error {
	loaded, err := s.from.load(ctx)
	if err != nil {
		return err
	}
	now := s.opts.now()
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
		s.offer(nil) // something else was held back, and is not there any more
		return nil
	case good && now.Round(0).Before(seasonedAt(leaf.Leaf)):
		log.FromContext(ctx).V(1).Info("Serving the old certificate until clocks that are behind accept the new one", "until", seasonedAt(leaf.Leaf))
		return nil
	}
	s.offer(leaf)
	s.adopt(ctx, now)
	return nil
}

// seasonedAt is when an API server accepts the certificate even if its clock is behind.
func seasonedAt(cert *x509.Certificate) time.Time {
	return cert.NotBefore.Add(min(maxSkew, cert.NotAfter.Sub(cert.NotBefore)/10))
}

// lookAtPublished takes over, once it is known, what was published before.
func (s *Supplied) lookAtPublished() {
	if published, ok := s.published.certificates(); ok {
		s.roots.adopt(published)
	}
}

// parse checks that the parts belong together, whatever time it is, and that none is cut off.
func (m material) parse(serverName string, now time.Time) (*servingLeaf, []*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(m.cert, m.key)
	if err != nil {
		return nil, nil, fmt.Errorf("%s and %s are no key pair: %w", signingCertKey, signingKeyKey, err)
	}
	if pair.Leaf, err = leafOf(&pair); err != nil {
		return nil, nil, err
	}
	cas, err := ParseBundle(m.ca)
	if err == nil && len(cas) == 0 {
		err = errors.New("there is no certificate")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", bundleKey, err)
	}
	at := now.Round(0)
	if at.Before(pair.Leaf.NotBefore) {
		at = pair.Leaf.NotBefore
	}
	if at.After(pair.Leaf.NotAfter) {
		at = pair.Leaf.NotAfter
	}
	for _, ca := range cas {
		if err = Verify(&pair, encodeCertificate(ca), serverName, at); err == nil {
			return &servingLeaf{Certificate: &pair, issuer: ca}, cas, nil
		}
	}
	return nil, nil, fmt.Errorf("checking %s against %s: %w", signingCertKey, bundleKey, err)
}
