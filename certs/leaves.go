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

// judge notes what bundles say about the leaf.
func (h *held) judge(v view, now time.Time) *judged {
	if h == nil {
		return nil
	}
	j := &judged{lasts: -1}
	j.accepted, j.refused = v.about(h.Certificate, now)
	switch {
	case len(j.refused) > 0 || !v.observed:
		h.since = time.Time{}
	case h.since.IsZero():
		h.since = now
	}
	if !h.since.IsZero() {
		j.lasts = now.Sub(h.since)
	}
	j.endsSoon = now.Add(min(early, h.Leaf.NotAfter.Sub(h.Leaf.NotBefore)/4)).After(h.Leaf.NotAfter)
	return j
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
			pause = s.opts.Times.PollClock
			if err.Error() != reported {
				logger.Info("Waiting for a serving certificate", "reason", err.Error())
			}
			reported = err.Error()
		case ctx.Err() == nil && err.Error() != reported:
			logger.Error(err, "Failed to refresh the serving certificate")
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
		case <-time.After(s.opts.Times.PollClock):
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

// look does what standing.decide says: it serves the next leaf, and notes whether this replica is ready.
func (s *Source) look(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, v := time.Now(), s.published.view()
	at := s.standing(v, now)
	is, why, held := at.decide(s.opts.Times)
	if is == takeNext {
		s.served, s.next = s.next, nil
		s.serving.Store(s.served.Certificate)
		certificateNotAfter.WithLabelValues("serving").Set(float64(s.served.Leaf.NotAfter.Unix()))
		log.FromContext(ctx).Info("Serving a new certificate", "issuer", s.served.issuer.Subject.CommonName, "notAfter", s.served.Leaf.NotAfter)
		at = s.standing(v, now)
		is, why, held = at.decide(s.opts.Times)
	}
	if held == nil {
		s.heldSince = time.Time{}
		heldBack.Set(0)
	} else {
		if s.heldSince.IsZero() {
			s.heldSince = now
		}
		heldBack.Set(now.Sub(s.heldSince).Seconds())
		log.FromContext(ctx).V(1).Info("Serving the old certificate until the new one is trusted", "reason", held.Error())
	}
	trusted := why
	if at.served != nil {
		if trusted = errors.Join(at.served.refused...); at.served.accepted == 0 && trusted == nil {
			trusted = errEmpty
		}
	}
	s.wasReady = s.wasReady || is == ready
	s.ready.Store(&why)
	s.trusted.Store(&trusted)
}

// standing gathers what decides.
func (s *Source) standing(v view, now time.Time) standing {
	at := standing{
		loading: fmt.Errorf("loading the serving certificate: %w", s.failure), notObserved: v.notObserved(), elsewhere: v.elsewhere(),
		served: s.served.judge(v, now), next: s.next.judge(v, now), first: v.first, wasReady: s.wasReady,
	}
	if s.last != nil {
		at.known, at.age, at.first = now.Sub(s.known), now.Round(0).Sub(s.last.written), v.first || s.last.first
	}
	if at.served != nil {
		s.wasRefused = s.wasRefused || len(at.served.refused) > 0
		at.sameCA = at.next != nil && s.next.issuer.Equal(s.served.issuer)
	}
	at.wasRefused = s.wasRefused
	if at.next != nil {
		at.next.young = s.last.leaf != nil && now.Before(s.next.Leaf.NotBefore.Add(s.opts.Times.MinLeafAge))
	}
	return at
}
