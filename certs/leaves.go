package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
)

// supply is where certificates come from; there is one for each mode.
type supply interface {
	// load looks once for material. The error says what is missing and what to do.
	load(ctx context.Context) (*material, error)
	// String names the place in messages.
	String() string
}

// material is what a supply has at one moment.
type material struct {
	cas     []*x509.Certificate // that clients must trust
	signing KeyPair             // signs leaves; no Key if leaf is supplied
	leaf    *tls.Certificate    // nil if signing signs leaves
	written time.Time           // when it was last changed, by the API server's clock
	first   bool                // no API server was ever told to trust another CA
}

// held is a leaf, its CA, and since when all bundles that are not empty have accepted it, by the monotonic clock.
type held struct {
	*tls.Certificate
	issuer *x509.Certificate
	since  time.Time // zero while one refuses it
}

// look notes what bundles say about the leaf.
func (h *held) look(v view, now time.Time) verdict {
	says := v.about(h.Certificate, now)
	switch {
	case len(says.refused) > 0 || !v.observed:
		h.since = time.Time{}
	case h.since.IsZero():
		h.since = now
	}
	return says
}

// lasts is for how long all bundles have accepted the leaf.
func (h *held) lasts(now time.Time) time.Duration {
	if h.since.IsZero() {
		return -1
	}
	return now.Sub(h.since)
}

// Source has the serving certificate of this replica. During a change of CA it holds the next one back until API servers accept it.
// It is safe for concurrent use. Only Start and Refresh do I/O.
type Source struct {
	from      supply
	opts      Options
	published *Published

	loading sync.Mutex // one load at a time, so that an older reading does not replace a newer one

	serving        atomic.Pointer[tls.Certificate]
	ready, trusted atomic.Pointer[error]

	mu           sync.Mutex
	failure      error     // why the last attempt to read material failed
	last         *material // nil before the first
	known        time.Time // when its CAs were first read
	served, next *held
	wasReady     bool
	wasRefused   bool // some bundle has refused a leaf that was served
	heldSince    time.Time
}

func newSource(from supply, published *Published, opts Options) *Source {
	s := &Source{from: from, opts: opts, published: published, failure: fmt.Errorf("%s has not been read yet", from)}
	s.look(context.Background()) //nolint:forbidigo // the process has no context yet, and this look reads what is there already
	return s
}

// NeedLeaderElection has a manager start the Source on every replica.
func (s *Source) NeedLeaderElection() bool { return false }

// GetCertificate answers TLS handshakes. It returns the served leaf, even if it has ended: the client decides whether to accept it.
// The result is shared; callers must not change it.
func (s *Source) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if leaf := s.serving.Load(); leaf != nil {
		return leaf, nil
	}
	return nil, *s.ready.Load()
}

// Ready returns nil if this replica can answer calls, as it was when Start last looked: after each change of what is published, and
// each second. It does no I/O.
func (s *Source) Ready() error { return *s.ready.Load() }

// Trusted returns nil if every bundle that is published accepts the served leaf, whether or not this replica is ready.
func (s *Source) Trusted(context.Context) error { return *s.trusted.Load() }

// CAs are those that the material names, the oldest first; nil before it is read.
func (s *Source) CAs() []*x509.Certificate {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		return nil
	}
	return s.last.cas
}

// Start looks for new material until ctx ends, and serves a new leaf as soon as it may be served. It logs a failure once, and tries
// again.
func (s *Source) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("certs")
	ctx = log.IntoContext(ctx, logger)
	reported := ""
	for ctx.Err() == nil {
		err := s.Refresh(ctx)
		pause := s.opts.Times.Poll
		switch {
		case err == nil:
			reported = ""
		case s.serving.Load() == nil:
			pause = s.opts.Times.Glance
			if err.Error() != reported {
				logger.Info("Waiting for a serving certificate", "reason", err.Error())
			}
			reported = err.Error()
		case ctx.Err() == nil && err.Error() != reported:
			logger.Error(err, "Could not refresh the serving certificate")
			reported = err.Error()
		}
		s.lookUntil(ctx, time.After(pause))
	}
	return nil
}

func (s *Source) lookUntil(ctx context.Context, done <-chan time.Time) {
	for {
		changed := s.published.Changed()
		s.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-done:
			return
		case <-changed:
		case <-time.After(s.opts.Times.Glance):
		}
	}
}

// Refresh looks once for new material. If that fails, it changes nothing.
func (s *Source) Refresh(ctx context.Context) error {
	s.loading.Lock()
	defer s.loading.Unlock()
	m, err := s.from.load(ctx)
	if err == nil {
		err = s.take(m)
	}
	s.mu.Lock()
	s.failure = err
	s.mu.Unlock()
	if err != nil {
		refreshFailures.Inc()
	}
	s.look(ctx)
	return err
}

// take notes what the supply has, and makes a leaf if another CA signs.
func (s *Source) take(m *material) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || !slices.EqualFunc(s.last.cas, m.cas, (*x509.Certificate).Equal) {
		s.known = time.Now()
	}
	s.last = m
	certificateNotAfter.WithLabelValues("ca").Set(float64(m.signing.Certificate.NotAfter.Unix()))
	same := func(h *held) bool {
		return h != nil && h.issuer.Equal(m.signing.Certificate) && (m.leaf == nil || h.Leaf.Equal(m.leaf.Leaf))
	}
	if same(s.served) {
		s.next = nil // the one that was held back is gone
	}
	if same(s.served) || same(s.next) {
		return nil
	}
	leaf := m.leaf
	if leaf == nil {
		var err error
		if leaf, err = m.signing.IssueLeaf(s.opts.Subject); err != nil {
			return err
		}
	}
	s.next = &held{Certificate: leaf, issuer: m.signing.Certificate}
	return nil
}

// look serves the next leaf if it may be served, and judges whether this replica is ready.
func (s *Source) look(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, v := time.Now(), s.published.view()
	if obstacle := s.obstacle(v, now); obstacle != nil {
		if s.heldSince.IsZero() {
			s.heldSince = now
		}
		heldBack.Set(now.Sub(s.heldSince).Seconds())
		log.FromContext(ctx).V(1).Info("Serving the old certificate until the new one is trusted", "reason", obstacle.Error())
	} else {
		s.heldSince = time.Time{}
		heldBack.Set(0)
		if s.next != nil {
			s.served, s.next = s.next, nil
			s.serving.Store(s.served.Certificate)
			certificateNotAfter.WithLabelValues("serving").Set(float64(s.served.Leaf.NotAfter.Unix()))
			log.FromContext(ctx).Info("Serving a new certificate", "issuer", s.served.issuer.Subject.CommonName, "notAfter", s.served.Leaf.NotAfter)
		}
	}
	ready, trusted := s.judge(v, now)
	s.wasReady = s.wasReady || ready == nil
	s.ready.Store(&ready)
	s.trusted.Store(&trusted)
}

// errHeld says that API servers may not have noticed yet which CA is published.
var errHeld = errors.New("API servers may not have noticed yet that the CA of the next certificate is published")

// obstacle returns why the next leaf is not served yet. There is none if there is no next leaf.
func (s *Source) obstacle(v view, now time.Time) error {
	if s.next == nil {
		return nil
	}
	says, lasts := s.next.look(v, now), s.next.lasts(now)
	if s.served == nil {
		return nil
	}
	old, next := s.served.Leaf, s.next.Leaf
	switch {
	case now.Add(min(early, old.NotAfter.Sub(old.NotBefore)/4)).After(old.NotAfter):
		return nil
	case s.last.leaf != nil && now.Before(next.NotBefore.Add(min(s.opts.Times.Season, next.NotAfter.Sub(next.NotBefore)/10))):
		return errors.New("API servers' clocks may be behind, and the next certificate has only just begun")
	case s.last.leaf != nil && now.After(next.NotAfter):
		return errors.New("the next certificate has ended already")
	case s.next.issuer.Equal(s.served.issuer):
		return nil
	case !v.observed:
		return v.notObserved()
	case says.replaces(v.about(s.served.Certificate, now), lasts, s.opts.Times.Hold):
		return nil
	}
	return errors.Join(append(says.refused, errHeld)...)
}

// judge returns whether this replica is ready, and whether every bundle accepts the served leaf.
func (s *Source) judge(v view, now time.Time) (ready, trusted error) {
	if s.served == nil {
		err := fmt.Errorf("loading the serving certificate: %w", s.failure)
		return err, err
	}
	says := s.served.look(v, now)
	s.wasRefused = s.wasRefused || len(says.refused) > 0
	if trusted = errors.Join(says.refused...); says.accepted == 0 && trusted == nil {
		trusted = errEmpty
	}
	return standing{
		verdict: says, ready: s.wasReady, acceptedFor: s.served.lasts(now), known: now.Sub(s.known), age: now.Round(0).Sub(s.last.written),
		wasRefused: s.wasRefused, first: v.first || s.last.first, elsewhere: v.elsewhere(), notObserved: v.notObserved(),
	}.judge(s.opts.Times), trusted
}
