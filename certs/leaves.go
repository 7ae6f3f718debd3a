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
// Durations are measured with time.Now, whose monotonic reading does not change when the clock is set. Times that are passed as
// arguments are compared with certificates only.
type leaves struct {
	published *Published
	served    atomic.Pointer[servingLeaf]
	failure   atomic.Pointer[error] // why the last attempt to get a new leaf failed

	// settle is how long all clients must have trusted the CA of the next leaf. poll is the longest time between two checks.
	settle, poll time.Duration

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
	if held > heldTooLong+l.settle && !l.heldReported {
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
	lasts := now.Round(0).Add(2 * l.poll).Before(current.Leaf.NotAfter) // an expired leaf fails every call; a leaf that is early fails few
	if lasts && time.Since(since) < l.settle && l.published.accepts(current.Certificate, now) {
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

// lookOut records when every API server first had the coming CA.
func (l *leaves) lookOut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.coming == nil:
	case l.published.carries(l.coming) != nil:
		l.carriedSince = time.Time{}
	case l.carriedSince.IsZero():
		l.carriedSince = time.Now()
	}
}

// get answers a TLS handshake. The argument from names the origin of certificates, for the error.
func (l *leaves) get(from string) (*tls.Certificate, error) {
	if leaf := l.served.Load(); leaf != nil {
		return leaf.Certificate, nil
	}
	if err := l.failure.Load(); err != nil && *err != nil {
		return nil, fmt.Errorf("loading the serving certificate: %w", *err)
	}
	return nil, fmt.Errorf("loading the serving certificate: %s has not been read yet", from)
}

// failed records how the last attempt to refresh ended. Until there is a certificate, get returns it.
func (l *leaves) failed(err error) {
	l.failure.Store(&err)
	if err != nil {
		refreshFailures.Inc()
	}
}

// keepCurrent calls refresh periodically until ctx ends, and serves the offered leaf as soon as it may be served. If look is not
// nil, keepCurrent calls it whenever what is published may have changed. It logs a failure once, not at every attempt.
func (l *leaves) keepCurrent(ctx context.Context, opts Options, refresh func(context.Context) error, look func()) error {
	logger := log.FromContext(ctx).WithName("certs")
	ctx = log.IntoContext(ctx, logger)
	var reported lastReason
	for ctx.Err() == nil {
		pause := opts.Poll
		err := refresh(ctx)
		if ctx.Err() == nil && reported.news(err) {
			logger.Error(err, "Could not refresh the serving certificate", "serving", l.served.Load() != nil)
		}
		if err != nil && l.served.Load() == nil {
			pause = min(pause, retryAfter)
		}
		opts.ServerClock.report(logger)
		l.adoptUntil(ctx, time.After(pause), opts.now, look)
	}
	return nil
}

// adoptUntil waits. Meanwhile it serves a leaf that was held back as soon as no client refuses it.
func (l *leaves) adoptUntil(ctx context.Context, done <-chan time.Time, now func() time.Time, look func()) {
	for {
		changed := l.published.Changed()
		if look != nil {
			look()
		}
		l.lookOut()
		l.adopt(ctx, now())
		select {
		case <-ctx.Done():
			return
		case <-done:
			return
		case <-changed:
		}
	}
}
