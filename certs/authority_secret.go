package certs

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The format of the CA Secret, of type kubernetes.io/tls. Only tls.crt and tls.key must be there; what is missing of the rest is
// derived, and the leader writes it back. Keys and annotations that are not ours are left alone.
//
//	ca.crt        what clients must trust: the signing CA, the next one, and those that signed leaves which may still be served
//	tls.crt       certificate of the CA that signs leaves
//	tls.key       its private key
//	next.crt      certificate of the CA that will sign once every client trusts it; there during a rotation only
//	next.key      its private key
//	previous.crt  certificate of the CA that signed before; there while it is in ca.crt
//	previous.key  its private key
const (
	bundleKey       = "ca.crt"
	signingCertKey  = corev1.TLSCertKey
	signingKeyKey   = corev1.TLSPrivateKeyKey
	nextCertKey     = "next.crt"
	nextKeyKey      = "next.key"
	previousCertKey = "previous.crt"
	previousKeyKey  = "previous.key"
)

const (
	// RetireAfterAnnotation is on the CA Secret while a former CA is trusted. It has the time, in RFC 3339, after which no former CA
	// is trusted. To drop former CAs at once, for example after a key has leaked, set it to a time in the past.
	RetireAfterAnnotation = "sidecarset.io/ca-retire-after"
	// FormerAnnotation has the time at which each former CA is dropped: CERTIFICATE=TIME, separated by commas, where CERTIFICATE is
	// the beginning of the SHA-256 of the certificate.
	FormerAnnotation = "sidecarset.io/ca-former"
	// RotateAnnotation makes the leader rotate the CA now, whatever its value is. The leader removes it when the rotation has begun.
	RotateAnnotation = "sidecarset.io/ca-rotate"
	// FormatAnnotation is the version of the Secret's format. A Secret without it has format 1: an administrator may have made it.
	FormatAnnotation = "sidecarset.io/ca-format"
)

// format is the version that Encode writes, and the highest that DecodeAuthority reads. It must be raised when Encode writes a
// Secret that this version would misread.
const format = 1

// DecodeAuthority reads the content of the CA Secret. Its errors are of type *SecretError.
func DecodeAuthority(secret *corev1.Secret, now time.Time) (Authority, error) {
	now = now.Round(0)
	fail := func(replaceable Replaceable, format string, args ...any) (Authority, error) {
		return Authority{}, newSecretError(secret, replaceable, fmt.Errorf(format, args...))
	}
	if err := checkFormat(secret); err != nil {
		return fail(Never, "%w", err)
	}
	cert, key := secret.Data[signingCertKey], secret.Data[signingKeyKey]
	if len(cert) == 0 || len(key) == 0 {
		return fail(ByAny, "%s or %s is empty", signingCertKey, signingKeyKey)
	}
	signing, err := parseKeyPair(cert, key)
	switch {
	case err != nil:
		return fail(ByAny, "%s and %s are not a certificate and its key: %w", signingCertKey, signingKeyKey, err)
	case !canSign(signing.Certificate):
		return fail(Never, "%s is not a CA, so the Secret belongs to another program", signingCertKey)
	case now.Add(maxSkew).Before(signing.Certificate.NotBefore):
		return fail(ByKnown, "%w %s: is the clock right?", errNotYetValid, signing.Certificate.NotBefore.UTC().Format(time.RFC3339))
	case now.Before(signing.Certificate.NotBefore):
		return fail(Never, "%w %s, which is soon", errNotYetValid, signing.Certificate.NotBefore.UTC().Format(time.RFC3339))
	case now.After(signing.Certificate.NotAfter):
		return fail(ByAny, "the CA expired at %s", signing.Certificate.NotAfter.UTC().Format(time.RFC3339))
	}
	a := Authority{Signing: signing, RotationRequested: secret.Annotations[RotateAnnotation] != ""}
	if next := decodePair(secret, nextCertKey, nextKeyKey); next != nil && !now.Before(next.Certificate.NotBefore) && !now.After(next.Certificate.NotAfter) {
		a.Next = next // an unusable next CA counts as none: no replica serves a leaf of it
	}
	a.Previous = decodePair(secret, previousCertKey, previousKeyKey)
	return a.trusting(formersIn(secret)...), nil
}

// errNotYetValid is the cause if the CA's validity begins in the future.
var errNotYetValid = errors.New("the CA is not valid before")

// errFormat is the cause if a later version of the operator wrote the Secret.
var errFormat = errors.New("run a version that knows it, or remove the annotation if no operator has set it")

// checkFormat refuses a Secret that a later version of the operator wrote.
func checkFormat(secret *corev1.Secret) error {
	written, ok := secret.Annotations[FormatAnnotation]
	if !ok {
		return nil
	}
	if version, err := strconv.Atoi(written); err == nil && version >= 0 && version <= format {
		return nil
	}
	return fmt.Errorf("the annotation %s is %q, and this version of the operator knows formats up to %d: %w", FormatAnnotation, written, format, errFormat)
}

// decodePair returns the pair under two keys, or nil if there is none that can sign.
func decodePair(secret *corev1.Secret, certKey, keyKey string) *KeyPair {
	pair, err := parseKeyPair(secret.Data[certKey], secret.Data[keyKey])
	if err != nil || !canSign(pair.Certificate) {
		return nil
	}
	return &pair
}

// formersIn returns the CAs in ca.crt with their times, including those that sign. It skips parts of ca.crt that do not parse,
// which cannot be published, and certificates that are not CAs, which have signed no leaf.
func formersIn(secret *corev1.Secret) []Former {
	bundle, _ := ParseBundle(secret.Data[bundleKey])
	known := parseFormer(secret.Annotations[FormerAnnotation])
	last, err := time.Parse(time.RFC3339, secret.Annotations[RetireAfterAnnotation])
	bounded := err == nil
	var formers []Former
	for _, cert := range bundle {
		if !canSign(cert) {
			continue
		}
		at, ok := known[fingerprint(cert)]
		if bounded && (!ok || last.Before(at)) {
			at = last
		}
		formers = append(formers, Former{Certificate: cert, RetireAfter: at, Found: !ok})
	}
	return formers
}

// fingerprint names a certificate in FormerAnnotation.
func fingerprint(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:8])
}

// parseFormer reads FormerAnnotation. It leaves out what does not parse, so that the leader decides its time again.
func parseFormer(value string) map[string]time.Time {
	times := map[string]time.Time{}
	for part := range strings.SplitSeq(value, ",") {
		if name, text, ok := strings.Cut(part, "="); ok {
			if at, err := time.Parse(time.RFC3339, text); err == nil {
				times[name] = at
			}
		}
	}
	return times
}

// formatFormer writes what parseFormer reads.
func (a Authority) formatFormer() string {
	var parts []string
	for _, f := range a.Old {
		if !f.RetireAfter.IsZero() {
			parts = append(parts, fingerprint(f.Certificate)+"="+f.RetireAfter.UTC().Format(time.RFC3339))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// retireAll returns the time at which the last former CA is dropped. It is zero if no former CA has a time.
func (a Authority) retireAll() time.Time {
	var last time.Time
	for _, f := range a.Old {
		if f.RetireAfter.After(last) {
			last = f.RetireAfter
		}
	}
	return last
}

// Encode writes the Authority into a Secret that the caller owns, and does not use if there is an error. It keeps keys and annotations that are not the operator's.
func (a Authority) Encode(secret *corev1.Secret) error {
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[bundleKey] = EncodeBundle(a.Bundle())
	for _, p := range []struct {
		pair    *KeyPair
		certKey string
		keyKey  string
	}{{&a.Signing, signingCertKey, signingKeyKey}, {a.Next, nextCertKey, nextKeyKey}, {a.Previous, previousCertKey, previousKeyKey}} {
		if p.pair == nil {
			delete(secret.Data, p.certKey)
			delete(secret.Data, p.keyKey)
			continue
		}
		der, err := x509.MarshalPKCS8PrivateKey(p.pair.Key)
		if err != nil {
			return fmt.Errorf("encoding private key: %w", err)
		}
		secret.Data[p.certKey] = encodeCertificate(p.pair.Certificate)
		secret.Data[p.keyKey] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	}
	last, former := a.retireAll(), a.formatFormer()
	annotate(secret, RetireAfterAnnotation, !last.IsZero(), last.UTC().Format(time.RFC3339))
	annotate(secret, FormerAnnotation, former != "", former)
	annotate(secret, FormatAnnotation, true, strconv.Itoa(format))
	annotate(secret, RotateAnnotation, a.RotationRequested, cmp.Or(secret.Annotations[RotateAnnotation], "requested"))
	return nil
}

func annotate(secret *corev1.Secret, key string, present bool, value string) {
	if !present {
		delete(secret.Annotations, key)
		return
	}
	metav1.SetMetaDataAnnotation(&secret.ObjectMeta, key, value)
}

// Replaceable says what the leader may put in place of an unusable CA.
type Replaceable int

// The values of Replaceable.
const (
	Never   Replaceable = iota // only an administrator may change the Secret
	ByKnown                    // a CA that worked before and still would; a new CA would not help
	ByAny                      // also a new CA: no working CA would be lost
)

// SecretError says that the CA Secret has no CA to sign with. A replica with a certificate continues to serve it.
type SecretError struct {
	Namespace, Name string
	Replaceable     Replaceable
	Reason          error
}

func newSecretError(secret *corev1.Secret, replaceable Replaceable, reason error) *SecretError {
	return &SecretError{Namespace: secret.Namespace, Name: secret.Name, Replaceable: replaceable, Reason: reason}
}

func (e *SecretError) Error() string {
	remedy := "delete it, or name another one with --cert-secret"
	switch {
	case errors.Is(e.Reason, errFormat):
		return fmt.Sprintf("reading the CA from Secret %s/%s: %v", e.Namespace, e.Name, e.Reason)
	case e.Replaceable == ByAny:
		remedy = "the leader replaces it; if none can, delete it"
	case e.Replaceable == ByKnown:
		remedy = "the leader writes the previous CA again if a replica remembers one; if none does, delete the Secret"
	}
	return fmt.Sprintf("reading the CA from Secret %s/%s: %v; %s", e.Namespace, e.Name, e.Reason, remedy)
}

func (e *SecretError) Unwrap() error { return e.Reason }
