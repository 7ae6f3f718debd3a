package certs

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// retryAfter is the pause before a failed step is tried again while a start waits for it.
	retryAfter = time.Second
	// requestTimeout bounds one request to the API server, so that a request that hangs does not delay a renewal.
	requestTimeout = 15 * time.Second
)

// FieldOwner is the field manager with which this package writes.
const FieldOwner = "sidecarset-operator-certs"

// SelfManaged is a Source that keeps its CA in a Secret. Each replica issues its own leaves, with keys that never leave the
// process. Its methods are safe for concurrent use.
//
// Any replica creates the Secret if there is none; replicas that lose the race read the winner's. A replica reads that Secret and
// no other, by name and with a GET, so that a Role can grant exactly that.
type SelfManaged struct {
	leaves
	client    client.Client
	authority atomic.Pointer[Authority] // the content of the Secret when it was last read; nil if it never was
}

var _ Source = &SelfManaged{}

// newSelfManaged returns a SelfManaged that consults published before it replaces a leaf by one of another CA. The client must not
// read from a cache: the current CA must sign a leaf, and watching Secrets needs more rights than this package should have.
func newSelfManaged(c client.Client, published *Published, opts Options) *SelfManaged {
	s := &SelfManaged{client: c}
	s.leaves = leaves{opts: opts, published: published, origin: s, load: s.load, look: func() {}}
	return s
}

func (s *SelfManaged) String() string { return "Secret " + s.secretRef().String() }

// Bundle returns what clients must trust according to the Secret, or nil before the first read.
func (s *SelfManaged) Bundle() []byte {
	if read := s.authority.Load(); read != nil {
		return EncodeBundle(read.Bundle())
	}
	return nil
}

// load reads the Secret, creates it if there is none, and issues a leaf if one is due.
func (s *SelfManaged) load(ctx context.Context) error {
	// Take the time before the read, and issue leaves as of that time: Advance relies on it to know when the last leaf of a CA has
	// expired.
	begun := s.opts.ServerClock.Read()
	authority, now, err := s.readOrCreate(ctx, begun)
	if err != nil {
		return err
	}
	authority = s.keepTrusted(authority, now)
	s.expect(authority.Next)
	s.authority.Store(&authority)
	certificateNotAfter.WithLabelValues("ca").Set(float64(authority.Signing.Certificate.NotAfter.Unix()))
	if err := s.issue(authority.Signing, now); err != nil {
		return err
	}
	s.adopt(ctx, now)
	return nil
}

// keepTrusted adds the CA of the served leaf, if the writer of the Secret left it out or lets it retire too early. Clients have to
// trust it until that leaf is replaced or has expired. The leader stores it.
func (s *SelfManaged) keepTrusted(a Authority, now time.Time) Authority {
	served := s.served.Load()
	if served == nil || now.Round(0).After(served.Leaf.NotAfter) || slices.ContainsFunc(a.current(), served.issuer.Equal) {
		return a
	}
	at := retireAfter(now, s.opts.policy())
	for _, f := range a.Old {
		switch {
		case !f.Equal(served.issuer):
		case f.RetireAfter.IsZero() || f.RetireAfter.After(served.Leaf.NotAfter):
			return a
		default:
			at = served.Leaf.NotAfter.Add(time.Second)
		}
	}
	return a.trusting(slices.Concat(a.Old, []Former{{Certificate: served.issuer, RetireAfter: at}})...)
}

// readOrCreate returns the content of the Secret, and the time of the API servers' clocks when the local clock was read.
func (s *SelfManaged) readOrCreate(ctx context.Context, begun Reading) (Authority, time.Time, error) {
	secret, err := s.getSecret(ctx)
	now, differs := s.opts.ServerClock.At(begun) // the answer has just shown the time
	if apierrors.IsNotFound(err) {
		if differs != nil {
			return Authority{}, now, fmt.Errorf("creating CA Secret %s: %w", s.secretRef(), differs)
		}
		if err := s.createSecret(ctx, now); err != nil && !apierrors.IsAlreadyExists(err) {
			return Authority{}, now, fmt.Errorf("creating CA Secret %s: %w", s.secretRef(), err)
		}
		secret, err = s.getSecret(ctx) // this replica's Secret, or that of the replica that was first
	}
	if err != nil {
		return Authority{}, now, fmt.Errorf("getting CA Secret %s: %w", s.secretRef(), err)
	}
	authority, err := s.decode(secret, now)
	return authority, now, err
}

// decode is DecodeAuthority for the operator's names: it refuses a CA that may not sign for them.
func (s *SelfManaged) decode(secret *corev1.Secret, now time.Time) (Authority, error) {
	a, err := DecodeAuthority(secret, now)
	if err != nil {
		return a, err
	}
	if err := a.Signing.vouches(s.opts.Subject, now); err != nil {
		return Authority{}, newSecretError(secret, ByKnown, fmt.Errorf("%s cannot sign for %s: %w", signingCertKey, s.opts.Subject, err))
	}
	if a.Next != nil && a.Next.vouches(s.opts.Subject, now) != nil {
		a.Next = nil
	}
	return a, nil
}

func (s *SelfManaged) getSecret(ctx context.Context) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	secret := &corev1.Secret{}
	return secret, s.client.Get(ctx, client.ObjectKey{Namespace: s.opts.Namespace, Name: s.opts.SecretName}, secret)
}

// createSecret stores a new CA. If the Secret was deleted, it stores the CA that this replica remembers, so that all served leaves
// and published bundles stay valid.
func (s *SelfManaged) createSecret(ctx context.Context, now time.Time) error {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.opts.Namespace,
			Name:      s.opts.SecretName,
			Labels:    managedBy(),
		},
		Type: corev1.SecretTypeTLS,
	}
	authority, err := Replacement(secret, s.authority.Load(), ByAny, now, s.opts.policy())
	if err != nil {
		return err
	}
	if err := authority.Encode(secret); err != nil {
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

// issue makes a leaf if the one that is served, or held back to be served next, is due for renewal or has another CA.
func (s *SelfManaged) issue(signing KeyPair, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	good := func(leaf *servingLeaf) bool {
		return leaf != nil && leaf.issuer.Equal(signing.Certificate) && !NeedsRenewal(leaf.Leaf, now)
	}
	if good(s.served.Load()) {
		s.next = nil // the CA of the leaf that was held back does not sign after all
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

func (s *SelfManaged) secretRef() klog.ObjectRef {
	return klog.KRef(s.opts.Namespace, s.opts.SecretName)
}
