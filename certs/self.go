package certs

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// requestTimeout bounds one request to the API server.
const requestTimeout = 15 * time.Second

// FieldOwner is the field manager with which this package writes.
const FieldOwner = "sidecarset-operator-certs"

// authoritySecret is the Secret of the CA, in mode self. Every replica reads it, by name and with a GET, so that a Role can grant
// exactly that. Each issues its own leaves, with keys that never leave the process.
type authoritySecret struct {
	client client.Client
	opts   Options
}

func (a *authoritySecret) String() string {
	return "Secret " + a.opts.Namespace + "/" + a.opts.SecretName
}

// remedy is the command after which the leader makes another Secret. No call fails.
func (a *authoritySecret) remedy() string {
	return "kubectl -n " + a.opts.Namespace + " delete secret " + a.opts.SecretName
}

func (a *authoritySecret) get(ctx context.Context) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	secret := &corev1.Secret{}
	if err := a.client.Get(ctx, client.ObjectKey{Namespace: a.opts.Namespace, Name: a.opts.SecretName}, secret); err != nil {
		return secret, fmt.Errorf("getting %s: %w", a, err)
	}
	return secret, nil
}

// load reads the Secret.
func (a *authoritySecret) load(ctx context.Context) (*material, error) {
	secret, err := a.get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("waiting for the leader to make %s", a)
	case err != nil:
		return nil, err
	}
	authority := Decode(secret)
	signing, err := authority.Signing(time.Now(), a.opts.Subject)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w; the leader replaces both. If it cannot, run %q", a, err, a.remedy())
	}
	return &material{cas: authority.CAs(), signing: signing, written: writtenAt(secret), first: isFirst(secret)}, nil
}

// keeper makes, mends and rotates the Secret. It is a manager.Runnable that needs the leader.
type keeper struct {
	*authoritySecret
	source *Source
}

// NeedLeaderElection has a manager start it on the leader only.
func (k *keeper) NeedLeaderElection() bool { return true }

// Start keeps the Secret until ctx ends. A failure is logged and tried again.
func (k *keeper) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("certs-keeper"))
	reported := ""
	for ctx.Err() == nil {
		pause := k.opts.Times.Poll
		err := k.keep(ctx)
		switch {
		case err == nil:
			reported = ""
		case errors.Is(err, errObserving), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err): // another replica was faster
			pause = k.opts.Times.PollClock
		case ctx.Err() == nil && err.Error() != reported:
			log.FromContext(ctx).Error(err, "Failed to reconcile the CA Secret", "Secret", k.opts.SecretName)
			reported, pause = err.Error(), k.opts.Times.PollClock
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// errObserving says that the leader does not know yet what API servers trust.
var errObserving = errors.New("waiting to see what is published")

// keep reads the Secret and makes the one write that is due, if one is: what is written is never what this process remembers.
func (k *keeper) keep(ctx context.Context) error {
	secret, err := k.get(ctx)
	if apierrors.IsNotFound(err) {
		return k.create(ctx)
	}
	if err != nil {
		return err
	}
	due, change, reason := Decode(secret).Due(time.Now(), k.opts.Subject)
	if change == "" {
		return reason
	}
	if err := due.Encode(secret); err != nil { // with its resourceVersion, which the API server compares
		return err
	}
	delete(secret.Annotations, firstAnnotation)
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := k.client.Update(bounded, secret, client.FieldOwner(FieldOwner)); err != nil {
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) { // it is immutable, of a type that needs other data, or a policy keeps it
			return fmt.Errorf("updating %s, which needs another CA: %w; run %q: the leader makes another Secret, and no call fails", k, err, k.remedy())
		}
		return fmt.Errorf("updating %s: %w", k, err)
	}
	if reason != nil {
		about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: k.opts.Namespace, Name: k.opts.SecretName}
		k.opts.warn(about, ReasonCAReplaced, "Replace", "Replaced a CA that cannot be used: "+reason.Error())
	}
	return k.written(ctx, due, change, reason)
}

// create stores two new CAs.
func (k *keeper) create(ctx context.Context) error {
	v := k.source.published.view()
	if !v.observed {
		return errObserving
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: k.opts.Namespace, Name: k.opts.SecretName, Labels: managedBy()}, Type: corev1.SecretTypeTLS}
	if len(v.trusts()) == 0 {
		secret.Annotations = map[string]string{firstAnnotation: "true"}
	}
	authority, err := NewAuthority(time.Now())
	if err == nil {
		err = authority.Encode(secret)
	}
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := k.client.Create(bounded, secret, client.FieldOwner(FieldOwner)); err != nil {
		return fmt.Errorf("creating %s: %w", k, err)
	}
	return k.written(ctx, authority, "created", nil)
}

// written reports a write, which this replica follows immediately.
func (k *keeper) written(ctx context.Context, a Authority, change string, reason error) error {
	authorityWrites.WithLabelValues(change).Inc()
	logger := log.FromContext(ctx).WithValues("Secret", k.opts.SecretName, "change", change, "issuer", a.Current.Certificate.Subject.CommonName,
		"notAfter", a.Current.Certificate.NotAfter, "rotateAt", rotateAt(a.Next.Certificate))
	if reason != nil {
		logger = logger.WithValues("reason", reason.Error())
	}
	logger.Info("Wrote the CA")
	return k.source.Refresh(ctx)
}
