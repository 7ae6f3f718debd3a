package certs

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// retryAfter is how soon a step that failed is tried again where a start waits for it.
	retryAfter = time.Second
	// requestTimeout bounds one request to the API server, so that one that hangs does not hold up renewal.
	requestTimeout = 15 * time.Second
)

// FieldOwner is the field manager under which this package writes.
const FieldOwner = "sidecarset-operator-certs"

// Options configure SelfManaged. Namespace, SecretName and Subject are required.
type Options struct {
	// Namespace and SecretName say where the CA is kept.
	Namespace, SecretName string
	// Subject is what leaves vouch for: the ServiceName at least, IP addresses where webhooks are reached by URL.
	Subject Subject

	// CALifetime is how long a CA is valid; default one year. It is rotated after two thirds of that, unattended, so there is nothing
	// to gain from a longer life; and what happens often is known to work.
	CALifetime time.Duration
	// LeafLifetime is how long a serving certificate is valid; default 30 days. It is renewed after 20, which leaves ten days to
	// repair whatever keeps a replica from reading the Secret. It is also how long an old CA stays in the bundle after a rotation.
	LeafLifetime time.Duration
	// Settle is how long every client must have had the next CA in its bundle before it signs; default ten minutes. API servers
	// follow within milliseconds; a rotation is in no hurry.
	Settle time.Duration
	// Poll is how often each replica reads the Secret and looks at the wall clock; default ten seconds.
	Poll time.Duration

	// Clock is the real one if nil.
	Clock clock.Clock
}

// complete fills in defaults and checks what was given.
func (o Options) complete() (Options, error) {
	o.CALifetime = cmp.Or(o.CALifetime, 365*24*time.Hour)
	o.LeafLifetime = cmp.Or(o.LeafLifetime, 30*24*time.Hour)
	o.Settle = cmp.Or(o.Settle, 10*time.Minute)
	o.Poll = cmp.Or(o.Poll, 10*time.Second)
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	var errs []error
	if o.Namespace == "" || o.SecretName == "" {
		errs = append(errs, errors.New("the CA Secret has no namespace or no name"))
	}
	if len(o.Subject.DNSNames)+len(o.Subject.IPs) == 0 {
		errs = append(errs, errors.New("the serving certificate has neither a DNS name nor an IP address"))
	}
	if min(o.LeafLifetime, o.Settle, o.Poll) < 0 {
		errs = append(errs, errors.New("a duration is negative"))
	}
	// A rotation takes place in the last third of a CA's life. A leaf issued at its beginning should live out its time.
	if o.CALifetime/3 < o.LeafLifetime+o.Settle {
		errs = append(errs, fmt.Errorf("a third of the CA's lifetime of %s is less than a leaf's of %s and the time to settle of %s",
			o.CALifetime, o.LeafLifetime, o.Settle))
	}
	if err := errors.Join(errs...); err != nil {
		return o, fmt.Errorf("configuring self-managed certificates: %w", err)
	}
	return o, nil
}

func (o Options) policy() Policy {
	return Policy{CALifetime: o.CALifetime, LeafLifetime: o.LeafLifetime}
}

// SelfManaged is a Source whose CA is kept in a Secret and whose leaves are issued here, each replica its own, with keys that never
// leave the process. It is also a manager.Runnable that needs no leader. Its methods are safe for concurrent use.
//
// Any replica makes the Secret if there is none; those that lose the race read the winner's. It reads that one Secret and nothing
// else, by name and with a GET, so that a Role can grant exactly that.
type SelfManaged struct {
	client    client.Client
	published *Published
	opts      Options

	syncing   sync.Mutex // one read of the Secret at a time, so that an older one does not overwrite a newer one
	authority atomic.Pointer[authorityRead]
	served    atomic.Pointer[servingLeaf]
	failure   atomic.Pointer[error] // why the last read failed

	leafMu sync.Mutex
	next   *servingLeaf // issued, but not yet served because somebody would refuse it
}

// authorityRead is the content of the Secret as last read.
type authorityRead struct {
	Authority
	bundle []byte
}

// servingLeaf is a leaf and the CA that signed it.
type servingLeaf struct {
	*tls.Certificate
	issuer *x509.Certificate
}

var _ Source = &SelfManaged{}

// NewSelfManaged returns a SelfManaged that consults published before it replaces a leaf by one of another CA. The client must not
// read from a cache: a leaf must be signed by the CA of now, and watching Secrets needs more rights than this should have.
func NewSelfManaged(c client.Client, published *Published, opts Options) (*SelfManaged, error) {
	opts, err := opts.complete()
	if err != nil {
		return nil, err
	}
	return &SelfManaged{client: c, published: published, opts: opts}, nil
}

// NeedLeaderElection has a manager start it on every replica.
func (s *SelfManaged) NeedLeaderElection() bool { return false }

// Start is Run, for a manager.
func (s *SelfManaged) Start(ctx context.Context) error { return s.Run(ctx) }

// Run follows the Secret and renews the leaf until ctx ends. A failure is logged and tried again.
func (s *SelfManaged) Run(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("certs")
	ctx = log.IntoContext(ctx, logger)
	reported := ""
	for ctx.Err() == nil {
		pause := s.opts.Poll
		err := s.Refresh(ctx)
		switch {
		case err == nil:
			reported = ""
		case ctx.Err() == nil && err.Error() != reported: // once, not with every poll
			reported = err.Error()
			logger.Error(err, "Could not refresh the serving certificate", "Secret", s.secretRef())
		}
		if err != nil && s.served.Load() == nil {
			pause = min(pause, retryAfter)
		}
		s.adoptUntil(ctx, s.opts.Clock.After(pause))
	}
	return nil
}

// adoptUntil waits, and meanwhile serves a leaf that is held back as soon as nobody refuses it any more.
func (s *SelfManaged) adoptUntil(ctx context.Context, done <-chan time.Time) {
	for {
		changed := s.published.Changed()
		s.adopt(ctx, s.opts.Clock.Now())
		select {
		case <-ctx.Done():
			return
		case <-done:
			return
		case <-changed:
		}
	}
}

// GetCertificate returns the leaf that is served, even if it has expired: whether to accept it is the client's to decide.
func (s *SelfManaged) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if leaf := s.served.Load(); leaf != nil {
		return leaf.Certificate, nil
	}
	if err := s.failure.Load(); err != nil && *err != nil {
		return nil, fmt.Errorf("loading the serving certificate: %w", *err)
	}
	return nil, fmt.Errorf("loading the serving certificate: Secret %s has not been read yet", s.secretRef())
}

// Bundle returns what the Secret says clients must trust, or nil before it has been read.
func (s *SelfManaged) Bundle() []byte {
	if read := s.authority.Load(); read != nil {
		return read.bundle
	}
	return nil
}

// Refresh reads the Secret, creates it if there is none, and issues a leaf if one is due.
func (s *SelfManaged) Refresh(ctx context.Context) error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	// Before the read, and leaves are issued as of then: Advance relies on it to know when the last leaf of a CA has expired.
	now := s.opts.Clock.Now()
	authority, err := s.readOrCreate(ctx, now)
	s.failure.Store(&err)
	if err != nil {
		return err
	}
	s.authority.Store(&authorityRead{Authority: authority, bundle: EncodeBundle(authority.Bundle(now))})
	certificateNotAfter.WithLabelValues("ca").Set(float64(authority.Signing.Certificate.NotAfter.Unix()))
	if err := s.issue(authority.Signing, now); err != nil {
		s.failure.Store(&err)
		return err
	}
	s.adopt(ctx, now)
	return nil
}

func (s *SelfManaged) readOrCreate(ctx context.Context, now time.Time) (Authority, error) {
	secret, err := s.getSecret(ctx)
	if apierrors.IsNotFound(err) {
		if err := s.createSecret(ctx, now); err != nil && !apierrors.IsAlreadyExists(err) {
			return Authority{}, fmt.Errorf("creating CA Secret %s: %w", s.secretRef(), err)
		}
		secret, err = s.getSecret(ctx) // ours, or that of the replica that was first
	}
	if err != nil {
		return Authority{}, fmt.Errorf("getting CA Secret %s: %w", s.secretRef(), err)
	}
	return DecodeAuthority(secret, now)
}

func (s *SelfManaged) getSecret(ctx context.Context) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	secret := &corev1.Secret{}
	return secret, s.client.Get(ctx, client.ObjectKey{Namespace: s.opts.Namespace, Name: s.opts.SecretName}, secret)
}

// createSecret stores a new CA, or the one that we remember if somebody has deleted the Secret: then every leaf that is served and
// every bundle that is published stays good.
func (s *SelfManaged) createSecret(ctx context.Context, now time.Time) error {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.opts.Namespace,
			Name:      s.opts.SecretName,
			Labels:    map[string]string{"app.kubernetes.io/managed-by": "sidecarset-operator"},
		},
		Type: corev1.SecretTypeTLS,
	}
	authority, err := Replacement(secret, s.remembered(), now, s.opts.policy())
	if err != nil {
		return err
	}
	if err := authority.Encode(secret, now); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := s.client.Create(ctx, secret, client.FieldOwner(FieldOwner)); err != nil {
		return err
	}
	log.FromContext(ctx).Info("Created the CA", "Secret", s.secretRef(), "notAfter", authority.Signing.Certificate.NotAfter)
	return nil
}

// remembered returns what the Secret held when it was last read, nil if it never was.
func (s *SelfManaged) remembered() *Authority {
	if read := s.authority.Load(); read != nil {
		return &read.Authority
	}
	return nil
}

// issue makes a leaf if the one that we serve, or hold back to serve next, is due for renewal or is signed by another CA.
func (s *SelfManaged) issue(signing KeyPair, now time.Time) error {
	s.leafMu.Lock()
	defer s.leafMu.Unlock()
	good := func(leaf *servingLeaf) bool {
		return leaf != nil && leaf.issuer.Equal(signing.Certificate) && !NeedsRenewal(leaf.Leaf, now)
	}
	if good(s.served.Load()) {
		s.next = nil // held back for a CA that does not sign after all
		return nil
	}
	if good(s.next) {
		return nil
	}
	cert, err := signing.IssueLeaf(s.opts.Subject, now, s.opts.LeafLifetime)
	if err != nil {
		return err
	}
	s.next = &servingLeaf{Certificate: cert, issuer: signing.Certificate}
	return nil
}

// adopt serves the next leaf, unless an API server that accepts the one we serve would refuse it. So a leaf of a new CA waits until
// that CA is published, and a leaf that nobody accepts any more, because it has expired or its CA is gone, is replaced at once.
func (s *SelfManaged) adopt(ctx context.Context, now time.Time) {
	s.leafMu.Lock()
	defer s.leafMu.Unlock()
	if s.next == nil {
		return
	}
	current := s.served.Load()
	if current != nil && !current.issuer.Equal(s.next.issuer) && now.Round(0).Before(current.Leaf.NotAfter) {
		if err := s.published.refuses(s.next.Certificate, current.Certificate, now); err != nil {
			log.FromContext(ctx).V(1).Info("Serving the old certificate until the new one is trusted", "reason", err.Error())
			return
		}
	}
	s.served.Store(s.next)
	certificateNotAfter.WithLabelValues("serving").Set(float64(s.next.Leaf.NotAfter.Unix()))
	log.FromContext(ctx).Info("Serving a new certificate", "issuer", s.next.issuer.Subject.CommonName,
		"notAfter", s.next.Leaf.NotAfter, "renewAt", RenewAt(s.next.Leaf))
	s.next = nil
}

func (s *SelfManaged) secretRef() klog.ObjectRef {
	return klog.KRef(s.opts.Namespace, s.opts.SecretName)
}
