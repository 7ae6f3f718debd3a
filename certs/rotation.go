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

// Rotator rotates and repairs the CA Secret of a SelfManaged. It is a manager.Runnable that needs the leader. Replicas create the
// Secret. After that only the Rotator and administrators change it.
type Rotator struct {
	source *SelfManaged

	uid     types.UID         // of the Secret, as last read or written here
	signing *x509.Certificate // the CA that signs, as last read or written here

	postponed lastReason // why a rotation does not begin, as last reported
}

// NeedLeaderElection has a manager start it on the leader only.
func (r *Rotator) NeedLeaderElection() bool { return true }

// Start rotates until ctx ends. A failure is logged and tried again.
func (r *Rotator) Start(ctx context.Context) error {
	logger := log.FromContext(ctx).WithName("certs-rotator")
	ctx = log.IntoContext(ctx, logger)
	var reported lastReason
	for ctx.Err() == nil {
		if err := r.step(ctx); ctx.Err() == nil && reported.news(err) {
			logger.Error(err, "Could not look after the CA", "Secret", r.source.secretRef())
			r.warn(err)
		}
		r.source.adoptUntil(ctx, time.After(r.source.opts.Poll))
	}
	return nil
}

// warn emits an event that says why the leader cannot look after the CA, if an administrator can repair that.
func (r *Rotator) warn(err error) {
	opts, about := r.source.opts, r.source.secretReference()
	if _, ok := errors.AsType[*ClockError](err); ok {
		opts.warn(about, ReasonClockDiffers, "Rotate", err.Error())
	} else if _, ok := errors.AsType[*SecretError](err); ok {
		opts.warn(about, ReasonCAUnusable, "Rotate", err.Error())
	}
}

// step reads the Secret and writes the one change to it that is due, if there is one.
func (r *Rotator) step(ctx context.Context) error {
	s := r.source
	begun := s.opts.ServerClock.Read() // before the read, as Advance asks
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
	// The answer of the API server shows the time. By a wrong clock, a valid CA would seem expired, or a new CA would begin in the
	// future.
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
	s.expect(stored.Next)
	if reason := stored.Postponed(now); r.postponed.news(reason) {
		s.opts.warn(s.secretReference(), ReasonRotationPostponed, "Rotate", reason.Error())
		log.FromContext(ctx).Info("Postponed the rotation of the CA", "Secret", s.secretRef(), "reason", reason.Error())
	}
	due, step, err := stored.Advance(now, s.opts.policy(), s.lookOut(ctx) >= s.opts.Settle)
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

// mayReplace returns what may take the place of a Secret that err is about. If API servers agree that a CA begins in the future,
// any CA may replace it. If no answer has shown the time, the local clock may be wrong.
func (r *Rotator) mayReplace(err error) Replaceable {
	unusable, ok := errors.AsType[*SecretError](err)
	switch {
	case !ok:
		return Never
	case unusable.Replaceable == ByKnown && errors.Is(err, errNotYetValid) && r.source.opts.ServerClock.heard():
		return ByAny
	}
	return unusable.Replaceable
}

// found counts the certificates in ca.crt that the leader did not put there: those that are kept, and those that are left out.
// A Secret without FormatAnnotation was not written by the leader, and does not record which ones the leader had put there.
func (r *Rotator) found(secret *corev1.Secret, stored Authority) (kept, left int) {
	if _, ok := secret.Annotations[FormatAnnotation]; !ok {
		return 0, 0
	}
	served := r.source.served.Load() // if another CA signs now, the CA of the served leaf signed before
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

// noticeFound emits an event that says that ca.crt has certificates that the leader did not put there.
func (r *Rotator) noticeFound(ctx context.Context, kept, left int, until time.Time) {
	if kept+left == 0 {
		return
	}
	s := r.source
	authorityRepairs.WithLabelValues("added").Inc()
	note := fmt.Sprintf("%d certificates were added to %s by hand or by another program: %d are trusted until %s at the latest, and %d are left out, because they are not CAs, or there are more than %d former CAs or %d bytes",
		kept+left, bundleKey, kept, until.UTC().Format(time.RFC3339), left, maxFormer, maxBundle)
	s.opts.warn(s.secretReference(), ReasonTrustAdded, "Rotate", note)
	log.FromContext(ctx).Info("Another program has added certificates to the CA bundle", "Secret", s.secretRef(), "trusted", kept, "leftOut", left)
}

// repair replaces an unusable CA. If an administrator repairs it at the same time, the administrator's write wins.
func (r *Rotator) repair(ctx context.Context, secret *corev1.Secret, reason error, may Replaceable, now time.Time) error {
	s := r.source
	authority, err := Replacement(secret, s.authority.Load(), may, now, s.opts.policy())
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

// store writes the Secret if it has not changed since it was read, and makes this replica follow at once. The other writers are
// administrators, and a leader that has not noticed yet that it lost the Lease.
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

// notice emits events about changes of the Secret since the leader last looked: a process deleted it and a replica put it back, or
// another program or an administrator wrote another CA into it. The operator uses that CA: whichever client may write the Secret
// may decide.
func (r *Rotator) notice(ctx context.Context, uid types.UID, signing *x509.Certificate) {
	first := r.signing == nil
	ours := first || r.signing.Equal(signing) || r.source.isComing(signing)
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
		s.opts.warn(s.secretReference(), ReasonForeignCA, "Rotate", "Another program has put another CA into the Secret; leaves are signed by it from now on")
		logger.Info("Another program has replaced the CA")
	}
}
