package certs

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The format of the CA Secret, of type kubernetes.io/tls. Only tls.crt and tls.key must be there; what is missing of the rest is
// derived, and the leader writes it back. Keys and annotations that are not ours are left alone.
//
//	ca.crt    what clients must trust: the signing CA, the next one, and those that signed leaves which may still be served
//	tls.crt   certificate of the CA that signs leaves
//	tls.key   its private key
//	next.crt  certificate of the CA that will sign once every client trusts it; there during a rotation only
//	next.key  its private key
const (
	bundleKey      = "ca.crt"
	signingCertKey = corev1.TLSCertKey
	signingKeyKey  = corev1.TLSPrivateKeyKey
	nextCertKey    = "next.crt"
	nextKeyKey     = "next.key"
)

const (
	// RetireAfterAnnotation stands on the CA Secret while a CA that no longer signs is still trusted: the time, in RFC 3339, after
	// which no leaf of it can be valid. Set it to a time in the past to drop such CAs at once, for example after a key has leaked.
	RetireAfterAnnotation = "sidecarset.io/ca-retire-after"
	// RotateAnnotation asks the leader, with any value, to rotate the CA now. The leader removes it when it has begun.
	RotateAnnotation = "sidecarset.io/ca-rotate"
)

// Authority is the content of the CA Secret: who signs now, who signs next, and who else is to be trusted.
type Authority struct {
	Signing KeyPair
	Next    *KeyPair            // nil unless a rotation has begun
	Old     []*x509.Certificate // CAs that no longer sign, while leaves of theirs may be served
	// RetireAfter is when Old may be dropped. It is zero when Old is empty, or when nobody has said yet.
	RetireAfter time.Time
	// RotationRequested says that somebody asked for a rotation before it is due.
	RotationRequested bool
}

// Policy is how long certificates live.
type Policy struct {
	CALifetime   time.Duration
	LeafLifetime time.Duration
}

// Step names what Advance did to an Authority.
type Step string

// The steps of a rotation, in order.
const (
	StepNone      Step = ""
	StepIntroduce Step = "introduce" // the next CA was made, to be published beside the one that signs
	StepPromote   Step = "promote"   // the next CA has become the signing one
	StepSchedule  Step = "schedule"  // it was settled when to drop a CA that was found in the bundle
	StepRetire    Step = "retire"    // the CAs that no longer sign were dropped from the bundle
	StepTidy      Step = "tidy"      // what had expired was dropped, or what was missing was added; only ca.crt changes
)

const caName = "sidecarset-operator-ca"

// NewAuthority returns an Authority with a new CA.
func NewAuthority(now time.Time, p Policy) (Authority, error) {
	ca, err := IssueCA(caName, now, p.CALifetime)
	if err != nil {
		return Authority{}, err
	}
	return Authority{Signing: ca}, nil
}

// Bundle returns the certificates that clients must trust, each once and none that has expired. The oldest is first, whoever signs, so
// that a promotion changes nothing that is published.
func (a Authority) Bundle(now time.Time) []*x509.Certificate {
	current := []*x509.Certificate{a.Signing.Certificate}
	if a.Next != nil {
		current = append(current, a.Next.Certificate)
	}
	bundle := MergeBundles(now, current, a.Old)
	sortByAge(bundle)
	return bundle
}

// Advance takes at most one step of the rotation that is due at now. The argument published says that every client has trusted Next
// for long enough to sign with it. Advance does not change a; it returns what should be stored in its place, which is a itself
// together with StepNone if nothing is due.
//
// The caller must have read a after it took now, and must store the result only if nobody changed what a was read from. A leaf is
// only ever issued from what was read after the time it is issued at, so leaves of the old CA expire LeafLifetime after the
// promotion was stored, give or take the difference between two replicas' clocks.
func (a Authority) Advance(now time.Time, p Policy, published bool) (Authority, Step, error) {
	switch {
	case a.Next != nil && published:
		promoted := a
		promoted.Signing, promoted.Next = *a.Next, nil
		promoted.Old = MergeBundles(now, []*x509.Certificate{a.Signing.Certificate}, a.Old)
		promoted.RetireAfter = retireAfter(now, p)
		return promoted, StepPromote, nil

	case a.Next == nil && (a.RotationRequested || NeedsRenewal(a.Signing.Certificate, now)):
		next, err := IssueCA(caName, now, p.CALifetime)
		if err != nil {
			return a, StepNone, err
		}
		introduced := a
		introduced.Next, introduced.RotationRequested = &next, false
		return introduced, StepIntroduce, nil

	case len(a.Old) > 0 && a.RetireAfter.IsZero():
		scheduled := a
		scheduled.RetireAfter = retireAfter(now, p)
		return scheduled, StepSchedule, nil

	case len(a.Old) > 0 && now.Round(0).After(a.RetireAfter):
		retired := a
		retired.Old, retired.RetireAfter = nil, time.Time{}
		return retired, StepRetire, nil
	}
	return a, StepNone, nil
}

// retireAfter is when the last leaf has expired that was issued up to now by a CA that stops signing now. Replicas' clocks may
// differ by as much as we back-date; where leaves live for less than that, by as long as a leaf lives.
func retireAfter(now time.Time, p Policy) time.Time {
	return now.Round(0).Add(p.LeafLifetime + min(Backdate, p.LeafLifetime)).Truncate(time.Second).Add(time.Second)
}

// DecodeAuthority reads the content of the CA Secret. Its errors are of type *SecretError.
func DecodeAuthority(secret *corev1.Secret, now time.Time) (Authority, error) {
	now = now.Round(0)
	fail := func(replaceable bool, format string, args ...any) (Authority, error) {
		return Authority{}, &SecretError{
			Namespace: secret.Namespace, Name: secret.Name, Replaceable: replaceable, Reason: fmt.Errorf(format, args...),
		}
	}
	cert, key := secret.Data[signingCertKey], secret.Data[signingKeyKey]
	if len(cert) == 0 || len(key) == 0 {
		return fail(true, "%s or %s is empty", signingCertKey, signingKeyKey)
	}
	signing, err := parseKeyPair(cert, key)
	switch {
	case err != nil:
		return fail(true, "%s and %s are no key pair: %w", signingCertKey, signingKeyKey, err)
	case !canSign(signing.Certificate):
		return fail(false, "%s is no CA, so the Secret serves somebody else", signingCertKey)
	case now.Before(signing.Certificate.NotBefore):
		return fail(false, "the CA is not valid before %s: is the clock right?", signing.Certificate.NotBefore.Format(time.RFC3339))
	case now.After(signing.Certificate.NotAfter):
		return fail(true, "the CA expired at %s", signing.Certificate.NotAfter.Format(time.RFC3339))
	}
	a := Authority{Signing: signing, Next: decodeNext(secret, now), RotationRequested: secret.Annotations[RotateAnnotation] != ""}
	a.readOld(secret, now)
	return a, nil
}

// decodeNext returns the CA that a rotation has introduced. One that cannot be used counts as none: nobody serves a leaf of it.
func decodeNext(secret *corev1.Secret, now time.Time) *KeyPair {
	next, err := parseKeyPair(secret.Data[nextCertKey], secret.Data[nextKeyKey])
	if err != nil || !canSign(next.Certificate) || now.Before(next.Certificate.NotBefore) || now.After(next.Certificate.NotAfter) {
		return nil
	}
	return &next
}

// readOld fills Old and RetireAfter. A part of ca.crt that does not parse cannot be published either, so it is passed over.
func (a *Authority) readOld(secret *corev1.Secret, now time.Time) {
	bundle, _ := ParseBundle(secret.Data[bundleKey])
	if a.Old = a.oldAmong(bundle, now); len(a.Old) == 0 {
		return
	}
	if at, err := time.Parse(time.RFC3339, secret.Annotations[RetireAfterAnnotation]); err == nil {
		a.RetireAfter = at
	}
}

// oldAmong returns the certificates that have not expired and are neither Signing nor Next.
func (a Authority) oldAmong(certs []*x509.Certificate, now time.Time) []*x509.Certificate {
	return slices.DeleteFunc(MergeBundles(now, certs), func(c *x509.Certificate) bool {
		return c.Equal(a.Signing.Certificate) || a.Next != nil && c.Equal(a.Next.Certificate)
	})
}

func canSign(cert *x509.Certificate) bool {
	return cert.IsCA && (cert.KeyUsage == 0 || cert.KeyUsage&x509.KeyUsageCertSign != 0)
}

// Encode writes the Authority into a Secret that the caller owns, leaving out what has expired and keeping what is not ours.
func (a Authority) Encode(secret *corev1.Secret, now time.Time) error {
	data := map[string][]byte{bundleKey: EncodeBundle(a.Bundle(now))}
	var err error
	if data[signingCertKey], data[signingKeyKey], err = encodeKeyPair(a.Signing); err != nil {
		return err
	}
	if a.Next != nil {
		if data[nextCertKey], data[nextKeyKey], err = encodeKeyPair(*a.Next); err != nil {
			return err
		}
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	for _, key := range []string{bundleKey, signingCertKey, signingKeyKey, nextCertKey, nextKeyKey} {
		if value, ok := data[key]; ok {
			secret.Data[key] = value
		} else {
			delete(secret.Data, key)
		}
	}
	annotate(secret, RetireAfterAnnotation, !a.RetireAfter.IsZero(), a.RetireAfter.UTC().Format(time.RFC3339))
	annotate(secret, RotateAnnotation, a.RotationRequested, cmp.Or(secret.Annotations[RotateAnnotation], "requested"))
	return nil
}

func annotate(secret *corev1.Secret, key string, present bool, value string) {
	if !present {
		delete(secret.Annotations, key)
		return
	}
	if secret.Annotations == nil {
		secret.Annotations = map[string]string{}
	}
	secret.Annotations[key] = value
}

// Replacement returns what to store in place of a Secret that cannot be used: what a replica still remembers, else the CA that a
// rotation had introduced, else a new one. Certificates that the Secret still holds stay trusted, because leaves signed by them may
// be served and be valid.
func Replacement(secret *corev1.Secret, remembered *Authority, now time.Time, p Policy) (Authority, error) {
	if remembered != nil && remembered.usable(now) {
		return *remembered, nil
	}
	var a Authority
	if next := decodeNext(secret, now); next != nil {
		a.Signing = *next
	} else {
		var err error
		if a, err = NewAuthority(now, p); err != nil {
			return Authority{}, err
		}
	}
	bundle, _ := ParseBundle(secret.Data[bundleKey])
	signing, _ := ParseBundle(secret.Data[signingCertKey])
	if a.Old = a.oldAmong(append(signing, bundle...), now); len(a.Old) > 0 {
		a.RetireAfter = retireAfter(now, p)
	}
	return a, nil
}

// usable says whether leaves can be issued at now.
func (a Authority) usable(now time.Time) bool {
	now = now.Round(0)
	cert := a.Signing.Certificate
	return cert != nil && !now.Before(cert.NotBefore) && !now.After(cert.NotAfter)
}

// SecretError says that the CA Secret holds nothing to sign with. A replica that has a certificate goes on serving it.
type SecretError struct {
	Namespace, Name string
	// Replaceable says that the leader may put a CA in its place, because nothing that works would be lost.
	Replaceable bool
	Reason      error
}

func (e *SecretError) Error() string {
	remedy := "delete it, or name another one with --cert-secret"
	if e.Replaceable {
		remedy = "the leader replaces it; if none can, delete it"
	}
	return fmt.Sprintf("reading the CA from Secret %s/%s: %v; %s", e.Namespace, e.Name, e.Reason, remedy)
}

func (e *SecretError) Unwrap() error { return e.Reason }

// replaceable says whether err is about a Secret that the leader may repair.
func replaceable(err error) bool {
	var secretErr *SecretError
	return errors.As(err, &secretErr) && secretErr.Replaceable
}
