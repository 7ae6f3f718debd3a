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

// leaves holds the leaf that is served and, during a change of CA, the one that waits to be. It is safe for concurrent use.
//
// A duration is measured with time.Now, whose monotonic reading does not change when the clock is set. Times that come as an argument
// are compared with certificates, and with nothing else.
type leaves struct {
	published *Published
	served    atomic.Pointer[servingLeaf]
	failure   atomic.Pointer[error] // why the last attempt to look for a new one failed

	// settle is how long everybody must have trusted the CA of the next leaf, and poll how long it may take until somebody looks again.
	settle, poll time.Duration

	mu           sync.Mutex
	next         *servingLeaf // not served yet because somebody would refuse it
	trustedSince time.Time    // when this replica first saw that every API server would accept it; zero if one would refuse it
	heldSince    time.Time    // since when there has been one
	heldReported bool
	coming       *x509.Certificate
	carriedSince time.Time // when this replica first saw the coming CA in every bundle; zero if one lacks it
}

// offer has a leaf served as soon as nobody refuses it, in place of one that was offered before.
func (l *leaves) offer(next *servingLeaf) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil || next == nil || !l.next.Leaf.Equal(next.Leaf) {
		l.next, l.trustedSince = next, time.Time{}
	}
}

// heldTooLong is how long a leaf may be held back, besides the time to settle, before that is an error.
const heldTooLong = time.Hour

// hold takes down that a leaf is held back because of err, or that none is.
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

// adopt serves the next leaf, unless an API server that accepts the one we serve would refuse it. So a leaf of a new CA waits until
// that CA is published and has been for long enough, and a leaf that nobody accepts any more, because it has expired or its CA is gone, is replaced at once.
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

// obstacle says why the next leaf cannot be served yet.
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
	lasts := now.Round(0).Add(2 * l.poll).Before(current.Leaf.NotAfter) // one that has expired fails every call, one that comes early few
	if lasts && time.Since(since) < l.settle && l.published.accepts(current.Certificate, now) {
		return errors.New("API servers may not have noticed yet that the CA of the next one is published")
	}
	return nil
}

// expect says which CA will sign next. The time in which everybody has had it counts before it signs as well; nil changes nothing.
func (l *leaves) expect(coming *KeyPair) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if coming != nil && (l.coming == nil || !l.coming.Equal(coming.Certificate)) {
		l.coming, l.carriedSince = coming.Certificate, time.Time{}
	}
}

// lookOut notes when every API server was first given the coming CA.
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

// get answers a TLS handshake. The argument from names, for the error, where certificates come from.
func (l *leaves) get(from string) (*tls.Certificate, error) {
	if leaf := l.served.Load(); leaf != nil {
		return leaf.Certificate, nil
	}
	if err := l.failure.Load(); err != nil && *err != nil {
		return nil, fmt.Errorf("loading the serving certificate: %w", *err)
	}
	return nil, fmt.Errorf("loading the serving certificate: %s has not been read yet", from)
}

// failed remembers how the last attempt to refresh ended, for whoever asks for a certificate before there is one.
func (l *leaves) failed(err error) {
	l.failure.Store(&err)
	if err != nil {
		refreshFailures.Inc()
	}
}

// keepCurrent calls refresh again and again until ctx ends, and serves what that offers as soon as it may be served. It calls look, if
// that is not nil, whenever what is published may have changed. A failure is logged once, not with every attempt.
func (l *leaves) keepCurrent(ctx context.Context, opts Options, refresh func(context.Context) error, look func()) error {
	logger := log.FromContext(ctx).WithName("certs")
	ctx = log.IntoContext(ctx, logger)
	reported := ""
	for ctx.Err() == nil {
		pause := opts.Poll
		err := refresh(ctx)
		switch {
		case err == nil:
			reported = ""
		case ctx.Err() == nil && err.Error() != reported:
			reported = err.Error()
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

// adoptUntil waits, and meanwhile serves a leaf that is held back as soon as nobody refuses it any more.
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
