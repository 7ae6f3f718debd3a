package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
)

// servingLeaf is a leaf and the CA that signed it.
type servingLeaf struct {
	*tls.Certificate
	issuer *x509.Certificate
}

// leaves holds the leaf that is served and, during a change of CA, the leaf that waits. It is safe for concurrent use.
//
// It does what the Sources have in common: it looks for new material, and answers handshakes.
//
// Durations are measured with time.Now, whose monotonic reading does not change when the clock is set. Times that are passed as
// arguments are compared with certificates only.
type leaves struct {
	opts      Options
	published *Published
	origin    fmt.Stringer                // where certificates come from, for messages
	load      func(context.Context) error // looks once for new material
	look      func()                      // called whenever what is published may have changed

	loading sync.Mutex // one load at a time, so that an older reading does not replace a newer one

	served  atomic.Pointer[servingLeaf]
	failure atomic.Pointer[error] // why the last attempt to get a new leaf failed

	mu           sync.Mutex
	next         *servingLeaf // not served yet because a client would refuse it
	trustedSince time.Time    // when this replica first saw that every API server would accept it; zero if one would refuse it
	heldSince    time.Time    // when this replica first had the next leaf
	heldReported bool
	coming       *x509.Certificate
	carriedSince time.Time // when this replica first saw the coming CA in every bundle; zero if one lacks it
}

// offer stores a leaf to be served once no client refuses it. It replaces a leaf that was offered before.
func (l *leaves) offer(next *servingLeaf) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil || next == nil || !l.next.Leaf.Equal(next.Leaf) {
		l.next, l.trustedSince = next, time.Time{}
	}
}

// heldTooLong is how long a leaf may be held back, in addition to the time to settle, before that counts as an error.
const heldTooLong = time.Hour

// hold records that a leaf is held back because of err, or that none is held back.
func (l *leaves) hold(ctx context.Context, err error) {
	if err == nil {
		l.heldSince, l.heldReported = time.Time{}, false
		heldBack.Set(0)
		return
	}
	if l.heldSince.IsZero() {
		l.heldSince = time.Now()
	}
	held := time.Since(l.heldSince)
	heldBack.Set(held.Seconds())
	if held > heldTooLong+l.opts.Settle && !l.heldReported {
		l.heldReported = true
		log.FromContext(ctx).Error(err, "The new serving certificate has been held back for long, and the old one expires",
			"since", l.heldSince, "notAfter", l.served.Load().Leaf.NotAfter)
	}
}

// adopt serves the next leaf, unless an API server that accepts the served leaf would refuse it. So a leaf of a new CA waits until
// that CA has been published for long enough. A leaf that no client accepts any more, because it has expired or its CA was removed,
// is replaced at once.
func (l *leaves) adopt(ctx context.Context, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.hold(ctx, nil)
		return
	}
	err := l.obstacle(now)
	l.hold(ctx, err)
	if err != nil {
		log.FromContext(ctx).V(1).Info("Serving the old certificate until the new one is trusted", "reason", err.Error())
		return
	}
	l.served.Store(l.next)
	certificateNotAfter.WithLabelValues("serving").Set(float64(l.next.Leaf.NotAfter.Unix()))
	log.FromContext(ctx).Info("Serving a new certificate", "issuer", l.next.issuer.Subject.CommonName,
		"notAfter", l.next.Leaf.NotAfter, "renewAt", RenewAt(l.next.Leaf))
	l.next = nil
}

// obstacle returns why the next leaf cannot be served yet.
func (l *leaves) obstacle(now time.Time) error {
	current := l.served.Load()
	if current == nil || current.issuer.Equal(l.next.issuer) || !now.Round(0).Before(current.Leaf.NotAfter) {
		return nil
	}
	if err := l.published.refuses(l.next.Certificate, current.Certificate, now); err != nil {
		l.trustedSince = time.Time{}
		return err
	}
	if l.trustedSince.IsZero() {
		l.trustedSince = time.Now()
	}
	since := l.trustedSince
	if l.coming != nil && l.coming.Equal(l.next.issuer) && !l.carriedSince.IsZero() && l.carriedSince.Before(since) {
		since = l.carriedSince
	}
	lasts := now.Round(0).Add(2 * l.opts.Poll).Before(current.Leaf.NotAfter) // an expired leaf fails every call; a leaf that is early fails few
	if lasts && time.Since(since) < l.opts.Settle && l.published.accepts(current.Certificate, now) {
		return errors.New("API servers may not have noticed yet that the CA of the next one is published")
	}
	return nil
}

// expect tells l which CA will sign next, so that the time for which clients have had it counts from before it signs. If ca is nil,
// expect changes nothing.
func (l *leaves) expect(coming *KeyPair) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if coming != nil && (l.coming == nil || !l.coming.Equal(coming.Certificate)) {
		l.coming, l.carriedSince = coming.Certificate, time.Time{}
	}
}

// isComing reports whether the CA was the last one that was expected to sign next.
func (l *leaves) isComing(ca *x509.Certificate) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.coming != nil && l.coming.Equal(ca)
}

// lookOut records when every API server first had the coming CA, and returns for how long all have had it.
func (l *leaves) lookOut(ctx context.Context) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.coming == nil {
		return 0
	}
	if err := l.published.carries(l.coming); err != nil {
		log.FromContext(ctx).V(1).Info("Not every API server has the next CA", "reason", err.Error())
		l.carriedSince = time.Time{}
		return 0
	}
	if l.carriedSince.IsZero() {
		l.carriedSince = time.Now()
	}
	return time.Since(l.carriedSince)
}

// GetCertificate returns the served leaf, even if it has expired: the client decides whether to accept it.
func (l *leaves) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if leaf := l.served.Load(); leaf != nil {
		return leaf.Certificate, nil
	}
	if err := l.failure.Load(); err != nil && *err != nil {
		return nil, fmt.Errorf("loading the serving certificate: %w", *err)
	}
	return nil, fmt.Errorf("loading the serving certificate: %s has not been read yet", l.origin)
}

// Refresh looks once for new material. Until there is a certificate, GetCertificate returns its error.
func (l *leaves) Refresh(ctx context.Context) error {
	l.loading.Lock()
	defer l.loading.Unlock()
	err := l.load(ctx)
	l.failure.Store(&err)
	if err != nil {
		refreshFailures.Inc()
	}
	l.look()
	return err
}

// NeedLeaderElection has a manager start the Source on every replica.
func (l *leaves) NeedLeaderElection() bool { return false }

// Start looks for new material periodically until ctx ends, and serves a new leaf as soon as it may be served. It logs a failure
// once, and tries again.
func (l *leaves) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("certs")
	ctx = log.IntoContext(ctx, logger)
	var reported lastReason
	for ctx.Err() == nil {
		pause := l.opts.Poll
		err := l.Refresh(ctx)
		if ctx.Err() == nil && reported.news(err) {
			logger.Error(err, "Could not refresh the serving certificate", "serving", l.served.Load() != nil)
		}
		if err != nil && l.served.Load() == nil {
			pause = min(pause, retryAfter)
		}
		l.opts.ServerClock.report(logger)
		l.adoptUntil(ctx, time.After(pause))
	}
	return nil
}

// adoptUntil waits. Meanwhile it serves a leaf that was held back as soon as no client refuses it, and notices if a client loses the
// coming CA.
func (l *leaves) adoptUntil(ctx context.Context, done <-chan time.Time) {
	for {
		changed := l.published.Changed()
		l.look()
		l.lookOut(ctx)
		l.adopt(ctx, l.opts.ServerClock.Now())
		select {
		case <-ctx.Done():
			return
		case <-done:
			return
		case <-changed:
		}
	}
}
