package certs

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Rotator takes a SelfManaged's CA Secret through its rotations and repairs it. It is a manager.Runnable that needs the leader.
// Replicas create the Secret; nobody but the Rotator changes it afterwards, people apart.
type Rotator struct {
	source *SelfManaged

	uid     types.UID         // of the Secret, as last read or written here
	signing *x509.Certificate // the CA that signs, likewise

	next  *x509.Certificate // the CA that is being published
	since time.Time         // since when everybody has had it, as far as we know; zero if somebody lacks it
}

// Rotator returns the leader's part of the work. Add it to the manager beside the SelfManaged itself.
func (s *SelfManaged) Rotator() *Rotator { return &Rotator{source: s} }

// NeedLeaderElection has a manager start it on the leader only.
func (r *Rotator) NeedLeaderElection() bool { return true }

// Start rotates until ctx ends. A failure is logged and tried again.
func (r *Rotator) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("certs-rotator")
	ctx = log.IntoContext(ctx, logger)
	reported := ""
	for ctx.Err() == nil {
		switch err := r.step(ctx); {
		case err == nil:
			reported = ""
		case ctx.Err() == nil && err.Error() != reported: // once, not with every poll
			reported = err.Error()
			logger.Error(err, "Could not look after the CA", "Secret", r.source.secretRef())
		}
		r.watchUntil(ctx, r.source.opts.Clock.After(r.source.opts.Poll))
	}
	return nil
}

// watchUntil waits, and meanwhile notices when a client loses the next CA.
func (r *Rotator) watchUntil(ctx context.Context, done <-chan time.Time) {
	for {
		changed := r.source.published.Changed()
		r.settled(ctx, r.source.opts.Clock.Now())
		select {
		case <-ctx.Done():
			return
		case <-done:
			return
		case <-changed:
		}
	}
}

// step reads the Secret and writes the one change to it that is due, if any.
func (r *Rotator) step(ctx context.Context) error {
	s := r.source
	now := s.opts.Clock.Now() // before the read, as Advance asks
	secret, err := s.getSecret(ctx)
	if apierrors.IsNotFound(err) {
		if err := s.Refresh(ctx); err != nil { // creates it
			return err
		}
		secret, err = s.getSecret(ctx)
	}
	if err != nil {
		return fmt.Errorf("getting CA Secret %s: %w", s.secretRef(), err)
	}
	stored, err := DecodeAuthority(secret, now)
	if replaceable(err) {
		return r.repair(ctx, secret, err, now)
	}
	if err != nil {
		return err
	}
	r.notice(ctx, secret.UID, stored.Signing.Certificate)
	stored = s.keepTrusted(stored, now)
	r.follow(stored.Next)
	due, step, err := stored.Advance(now, s.opts.policy(), r.settled(ctx, now))
	if err != nil {
		return fmt.Errorf("rotating the CA in Secret %s: %w", s.secretRef(), err)
	}
	if step == StepNone {
		if bytes.Equal(secret.Data[bundleKey], EncodeBundle(stored.Bundle(now))) {
			return nil
		}
		step = StepTidy
	}
	if err := r.store(ctx, secret, due, now); err != nil {
		return err
	}
	log.FromContext(ctx).Info("Updated the CA", "Secret", s.secretRef(), "step", step,
		"issuer", due.Signing.Certificate.Subject.CommonName, "notAfter", due.Signing.Certificate.NotAfter)
	return nil
}

// repair puts a CA in place of one that cannot be used. Somebody who repairs it by hand at the same time wins.
func (r *Rotator) repair(ctx context.Context, secret *corev1.Secret, reason error, now time.Time) error {
	s := r.source
	authority, err := Replacement(secret, s.remembered(), now, s.opts.policy())
	if err != nil {
		return fmt.Errorf("replacing the CA in Secret %s: %w", s.secretRef(), err)
	}
	if err := r.store(ctx, secret, authority, now); err != nil {
		return errors.Join(reason, err)
	}
	authorityRepairs.WithLabelValues("replaced").Inc()
	s.opts.warn(s.secretReference(), ReasonCAReplaced, "Repair", "Replaced the CA, which could not be used: "+reason.Error())
	log.FromContext(ctx).Info("Replaced a CA that could not be used", "Secret", s.secretRef(), "reason", reason.Error(),
		"issuer", authority.Signing.Certificate.Subject.CommonName, "notAfter", authority.Signing.Certificate.NotAfter)
	return nil
}

// store writes the Secret if it is still as it was read, and has this replica follow at once. The other writers are people, and a
// leader that has not noticed yet that it no longer leads.
func (r *Rotator) store(ctx context.Context, secret *corev1.Secret, authority Authority, now time.Time) error {
	s := r.source
	changed := secret.DeepCopy() // with its resourceVersion, which the API server compares
	if err := authority.Encode(changed, now); err != nil {
		return fmt.Errorf("encoding the CA for Secret %s: %w", s.secretRef(), err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := s.client.Update(ctx, changed, client.FieldOwner(FieldOwner)); err != nil {
		return fmt.Errorf("updating CA Secret %s: %w", s.secretRef(), err)
	}
	r.signing = authority.Signing.Certificate
	return s.Refresh(ctx)
}

// notice tells people what others have done to the Secret: deleted it, whoever has put it back, or written another CA into it. That may
// be the CA of another operator, or of a person; whoever may write the Secret decides, so it is used.
func (r *Rotator) notice(ctx context.Context, uid types.UID, signing *x509.Certificate) {
	first := r.signing == nil
	ours := first || r.signing.Equal(signing) || r.next != nil && r.next.Equal(signing)
	restored := !first && ours && r.uid != uid
	r.uid, r.signing = uid, signing

	s := r.source
	logger := log.FromContext(ctx).WithValues("Secret", s.secretRef(), "issuer", signing.Subject.CommonName, "notAfter", signing.NotAfter)
	switch {
	case restored:
		authorityRepairs.WithLabelValues("restored").Inc()
		s.opts.warn(s.secretReference(), ReasonCARestored, "Restore", "The Secret had been deleted; it holds the same CA again")
		logger.Info("Restored the CA, whose Secret had been deleted")
	case !ours:
		authorityRepairs.WithLabelValues("foreign").Inc()
		s.opts.warn(s.secretReference(), ReasonForeignCA, "Rotate", "Somebody else has put another CA into the Secret; leaves are signed by it from now on")
		logger.Info("Somebody else has replaced the CA")
	}
}

// follow takes notice of which CA is being published.
func (r *Rotator) follow(next *KeyPair) {
	switch {
	case next == nil:
		r.next, r.since = nil, time.Time{}
	case r.next == nil || !r.next.Equal(next.Certificate):
		r.next, r.since = next.Certificate, time.Time{}
	}
}

// settled says whether everybody has had the next CA for long enough. A new leader, who cannot know, waits anew.
func (r *Rotator) settled(ctx context.Context, now time.Time) bool {
	if r.next == nil {
		return false
	}
	if err := r.source.published.carries(r.next); err != nil {
		log.FromContext(ctx).V(1).Info("Holding back the next CA", "reason", err.Error())
		r.since = time.Time{}
		return false
	}
	if r.since.IsZero() {
		r.since = now
	}
	return now.Sub(r.since) >= r.source.opts.Settle
}
