package certs

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
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

	postponed string // why a rotation does not begin, as last reported

	next  *x509.Certificate // the CA that is being published
	since time.Time         // when it was first seen in every bundle, by the monotonic clock; zero if one lacks it
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
			r.warn(err)
		}
		r.watchUntil(ctx, time.After(r.source.opts.Poll))
	}
	return nil
}

// warn tells people why the CA is not looked after, if that is theirs to mend.
func (r *Rotator) warn(err error) {
	opts, about := r.source.opts, r.source.secretReference()
	if _, ok := errors.AsType[*ClockError](err); ok {
		opts.warn(about, ReasonClockDiffers, "Rotate", err.Error())
	} else if _, ok := errors.AsType[*SecretError](err); ok {
		opts.warn(about, ReasonCAUnusable, "Rotate", err.Error())
	}
}

// watchUntil waits, and meanwhile notices when a client loses the next CA.
func (r *Rotator) watchUntil(ctx context.Context, done <-chan time.Time) {
	for {
		changed := r.source.published.Changed()
		r.settled(ctx)
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
	begun := ReadClock(s.opts.Clock) // before the read, as Advance asks
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
	// The answer has told the time. By a clock that is wrong, a CA that is good has expired, or one begins that is not good yet.
	now, err := s.opts.ServerClock.At(begun)
	if err != nil {
		return fmt.Errorf("looking after the CA in Secret %s: %w", s.secretRef(), err)
	}
	stored, err := s.decode(secret, now)
	if may := r.mayReplace(err); may != Never {
		return r.repair(ctx, secret, err, may, now)
	}
	if err != nil {
		return err
	}
	r.notice(ctx, secret.UID, stored.Signing.Certificate)
	kept, left := r.found(secret, stored)
	stored = s.keepTrusted(stored, now)
	r.follow(stored.Next)
	r.postpone(ctx, stored.Postponed(now))
	due, step, err := stored.Advance(now, s.opts.policy(), r.settled(ctx))
	if err != nil {
		return fmt.Errorf("rotating the CA in Secret %s: %w", s.secretRef(), err)
	}
	if step == StepNone {
		if stored.stored(secret) {
			return nil
		}
		step = StepTidy
	}
	if err := r.store(ctx, secret, due); err != nil {
		return err
	}
	r.noticeFound(ctx, kept, left, due.retireAll())
	log.FromContext(ctx).Info("Updated the CA", "Secret", s.secretRef(), "step", step,
		"issuer", due.Signing.Certificate.Subject.CommonName, "notAfter", due.Signing.Certificate.NotAfter)
	return nil
}

// mayReplace says what may take the place of a Secret that err is about. A CA that begins in the future is worth nothing if API
// servers agree that it does; if they have not told the time, it may be our clock that is wrong.
func (r *Rotator) mayReplace(err error) Replaceable {
	may := replaceable(err)
	if may == ByKnown && errors.Is(err, errNotYetValid) && r.source.opts.ServerClock.heard() {
		return ByAny
	}
	return may
}

// postpone tells people, once each time it changes, why a rotation does not begin.
func (r *Rotator) postpone(ctx context.Context, reason error) {
	before := r.postponed
	r.postponed = ""
	if reason == nil {
		return
	}
	if r.postponed = reason.Error(); r.postponed != before {
		r.source.opts.warn(r.source.secretReference(), ReasonRotationPostponed, "Rotate", r.postponed)
		log.FromContext(ctx).Info("Postponed the rotation of the CA", "Secret", r.source.secretRef(), "reason", r.postponed)
	}
}

// found counts the certificates that somebody has put into ca.crt: those that are kept, and those that are left out. Versions before
// FormatAnnotation did not record which ones they had put there.
func (r *Rotator) found(secret *corev1.Secret, stored Authority) (kept, left int) {
	if _, ok := secret.Annotations[FormatAnnotation]; !ok {
		return 0, 0
	}
	served := r.source.served.Load() // its CA has signed before, if another one does now
	for _, f := range stored.Old {
		if f.Found && (served == nil || !f.Equal(served.issuer)) {
			kept++
		}
	}
	written, _ := ParseBundle(secret.Data[bundleKey])
	for _, cert := range written {
		if !slices.ContainsFunc(stored.Bundle(), cert.Equal) {
			left++
		}
	}
	return kept, left
}

// noticeFound tells people that somebody has put certificates into ca.crt.
func (r *Rotator) noticeFound(ctx context.Context, kept, left int, until time.Time) {
	if kept+left == 0 {
		return
	}
	s := r.source
	authorityRepairs.WithLabelValues("added").Inc()
	note := fmt.Sprintf("Somebody has put %d certificates into %s: %d are trusted until %s at the latest, and %d are left out, because they are no CAs or more than %d former CAs or %d bytes",
		kept+left, bundleKey, kept, until.UTC().Format(time.RFC3339), left, maxFormer, maxBundle)
	s.opts.warn(s.secretReference(), ReasonTrustAdded, "Rotate", note)
	log.FromContext(ctx).Info("Somebody has put certificates into the CA bundle", "Secret", s.secretRef(), "trusted", kept, "leftOut", left)
}

// repair puts a CA in place of one that cannot be used. Somebody who repairs it by hand at the same time wins.
func (r *Rotator) repair(ctx context.Context, secret *corev1.Secret, reason error, may Replaceable, now time.Time) error {
	s := r.source
	authority, err := Replacement(secret, s.remembered(), may, now, s.opts.policy())
	if err != nil {
		return errors.Join(reason, fmt.Errorf("replacing the CA in Secret %s: %w", s.secretRef(), err))
	}
	if err := r.store(ctx, secret, authority); err != nil {
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
func (r *Rotator) store(ctx context.Context, secret *corev1.Secret, authority Authority) error {
	s := r.source
	changed := secret.DeepCopy() // with its resourceVersion, which the API server compares
	if err := authority.Encode(changed); err != nil {
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

// notice tells people what others have done to the Secret since the leader last looked: deleted it, whichever replica has put it back,
// or written another CA into it. That may be the CA of another operator, or of a person. It is used: the right to write the Secret is
// the right to decide.
func (r *Rotator) notice(ctx context.Context, uid types.UID, signing *x509.Certificate) {
	first := r.signing == nil
	ours := first || r.signing.Equal(signing) || r.next != nil && r.next.Equal(signing)
	restored := !first && ours && r.uid != uid
	r.uid, r.signing = uid, signing

	s := r.source
	logger := log.FromContext(ctx).WithValues("Secret", s.secretRef(), "issuer", signing.Subject.CommonName, "notAfter", signing.NotAfter)
	switch {
	case first:
		logger.Info("Looking after the CA from now on")
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

// settled reports whether every API server has had the next CA for long enough. A new leader cannot know since when, and waits anew.
func (r *Rotator) settled(ctx context.Context) bool {
	if r.next == nil {
		return false
	}
	if err := r.source.published.carries(r.next); err != nil {
		log.FromContext(ctx).V(1).Info("Holding back the next CA", "reason", err.Error())
		r.since = time.Time{}
		return false
	}
	if r.since.IsZero() {
		r.since = time.Now()
	}
	return time.Since(r.since) >= r.source.opts.Settle
}
