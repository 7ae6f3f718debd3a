package certs

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The format of the CA Secret. The operator creates it with type kubernetes.io/tls. API servers refuse changes of the type, so a
// Secret of another one, as a backup or GitOps may make it, keeps its own.
//
//	tls.crt       certificate of the CA that signs leaves
//	tls.key       its private key
//	next.crt      certificate of the CA that signs next; every client trusts it already
//	next.key      its private key
//	previous.crt  certificate of the CA that signed before; clients continue trusting it
const (
	currentCertKey  = corev1.TLSCertKey
	currentKeyKey   = corev1.TLSPrivateKeyKey
	nextCertKey     = "next.crt"
	nextKeyKey      = "next.key"
	previousCertKey = "previous.crt"
)

// firstAnnotation is on a Secret that was made when no API server trusted anything yet. It counts only until the Secret is written
// again.
const firstAnnotation = "sidecarset.io/first-ca"

// Authority is the content of the CA Secret. A pair whose key does not parse has no Key; one whose certificate does not parse is
// zero.
type Authority struct {
	Current, Next KeyPair
	Previous      *x509.Certificate
}

// Decode reads the content of the CA Secret. What does not parse is left out.
func Decode(secret *corev1.Secret) Authority {
	a := Authority{
		Current: decodePair(secret.Data[currentCertKey], secret.Data[currentKeyKey]),
		Next:    decodePair(secret.Data[nextCertKey], secret.Data[nextKeyKey]),
	}
	if previous, _ := ParseBundle(secret.Data[previousCertKey]); len(previous) > 0 {
		a.Previous = previous[0]
	}
	return a
}

// decodePair reads what Encode wrote, and what other tools write: PKCS #8, PKCS #1 and SEC 1 keys.
func decodePair(cert, key []byte) KeyPair {
	certs, _ := ParseBundle(cert)
	if len(certs) == 0 {
		return KeyPair{}
	}
	ca := KeyPair{Certificate: certs[0]}
	if pair, err := tls.X509KeyPair(cert, key); err == nil {
		ca.Key, _ = pair.PrivateKey.(crypto.Signer)
	}
	return ca
}

// Encode writes a into the data of the Secret, and nothing else.
func (a Authority) Encode(secret *corev1.Secret) error {
	secret.Data = map[string][]byte{}
	for _, part := range []struct {
		pair      KeyPair
		cert, key string
	}{{a.Current, currentCertKey, currentKeyKey}, {a.Next, nextCertKey, nextKeyKey}} {
		key, err := x509.MarshalPKCS8PrivateKey(part.pair.Key)
		if err != nil {
			return fmt.Errorf("encoding %s: %w", part.key, err)
		}
		secret.Data[part.cert] = encodeCertificate(part.pair.Certificate)
		secret.Data[part.key] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	}
	if a.Previous != nil {
		secret.Data[previousCertKey] = encodeCertificate(a.Previous)
	}
	return nil
}

// CAs are the certificates that clients must trust, the oldest first.
func (a Authority) CAs() []*x509.Certificate {
	cas := slices.DeleteFunc([]*x509.Certificate{a.Current.Certificate, a.Next.Certificate, a.Previous}, func(c *x509.Certificate) bool { return c == nil })
	return oldestFirst(cas)
}

// Signing returns the pair that signs leaves: the current one, or the next one if the current one is unusable.
func (a Authority) Signing(now time.Time, subject Subject) (KeyPair, error) {
	err := a.Current.unusable(now, subject)
	if err == nil {
		return a.Current, nil
	}
	if a.Next.unusable(now, subject) == nil {
		return a.Next, nil
	}
	return KeyPair{}, fmt.Errorf("%s cannot be used, and %s cannot either: %w", currentCertKey, nextCertKey, err)
}

// unusable returns why a pair cannot sign leaves that API servers accept, or that it soon cannot.
func (ca KeyPair) unusable(now time.Time, subject Subject) error {
	switch {
	case ca.Certificate == nil:
		return fmt.Errorf("there is no certificate")
	case ca.Key == nil:
		return fmt.Errorf("the private key does not belong to the certificate")
	case !ca.Certificate.IsCA:
		return fmt.Errorf("it is not a CA")
	case now.Add(unusableBefore).After(ca.Certificate.NotAfter):
		return fmt.Errorf("it ends at %s", ca.Certificate.NotAfter.UTC().Format(time.RFC3339))
	}
	leaf, err := ca.IssueLeaf(subject)
	if err != nil {
		return err
	}
	return Verify(leaf, encodeCertificate(ca.Certificate), "", withinLife(leaf.Leaf, now)) // name constraints are checked for all names
}

// caName begins the subject of every CA that the operator makes.
const caName = "sidecarset-operator-ca"

// NewAuthority returns two new CAs.
func NewAuthority(now time.Time) (Authority, error) {
	current, err := IssueCA(caName, now, caLife)
	if err != nil {
		return Authority{}, err
	}
	next, err := IssueCA(caName, now, caLife)
	return Authority{Current: current, Next: next}, err
}

// Due returns what the Secret should hold at a time instead of a, and why; "" if it should hold a. reason is nil unless a pair is
// unusable.
func (a Authority) Due(now time.Time, subject Subject) (due Authority, change string, reason error) {
	current, next := a.Current.unusable(now, subject), a.Next.unusable(now, subject)
	switch {
	case current != nil:
		change, reason = "replaced", fmt.Errorf("%s: %w", currentCertKey, current)
	case next != nil:
		change, reason = "replaced", fmt.Errorf("%s: %w", nextCertKey, next)
	case now.After(rotateAt(a.Next.Certificate)):
		change = "rotated"
	default:
		return a, "", nil
	}
	fresh, err := NewAuthority(now)
	switch {
	case err != nil:
		return a, "", err
	case current != nil && next != nil:
		return Authority{fresh.Current, fresh.Next, a.Current.Certificate}, change, reason
	case next != nil:
		return Authority{a.Current, fresh.Next, a.Previous}, change, reason
	}
	return Authority{a.Next, fresh.Next, a.Current.Certificate}, change, reason
}

// rotateAt returns when the next CA begins to sign: when it is a third of its life old.
func rotateAt(next *x509.Certificate) time.Time {
	return next.NotBefore.Add(next.NotAfter.Sub(next.NotBefore) / 3)
}

// writtenAt returns when the Secret was last written, by the API server's clock.
func writtenAt(secret *corev1.Secret) time.Time {
	at := secret.CreationTimestamp.Time
	for _, f := range secret.ManagedFields {
		if f.Time != nil && f.Time.After(at) {
			at = f.Time.Time
		}
	}
	return at
}

// isFirst reports whether the operator made the Secret when no API server trusted anything yet, and has not been written since:
// every other write of the operator removes the annotation, and a backup is restored under another name. Then no API server has ever
// been told to trust another CA.
func isFirst(secret *corev1.Secret) bool {
	_, marked := secret.Annotations[firstAnnotation]
	return marked && !slices.ContainsFunc(secret.ManagedFields, func(f metav1.ManagedFieldsEntry) bool { return f.Manager != FieldOwner })
}
