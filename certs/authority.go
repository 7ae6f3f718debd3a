package certs

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// maxFormer is the largest number of former CAs that are trusted. With leaves that live for 30 days, the default, this allows a
	// rotation every four days. A rotation that is due by the CA's age comes every eight months.
	maxFormer = 8
	// maxBundle is the largest size of the bundle. It is copied into every webhook entry, and etcd accepts objects up to 1.5 MB.
	maxBundle = 64 << 10
)

// Authority is the content of the CA Secret: the CA that signs now, the CA that signs next, and the other CAs that clients must
// trust.
type Authority struct {
	Signing KeyPair
	Next    *KeyPair // nil unless a rotation has begun
	// Previous is the pair that signed before. It is kept while its certificate is in Old, and replaces Signing if Signing cannot be
	// used.
	Previous *KeyPair
	Old      []Former
	// RotationRequested reports whether an administrator asked for a rotation before it is due.
	RotationRequested bool
}

// Former is a CA that no longer signs. Leaves of it may still be served.
type Former struct {
	*x509.Certificate
	// RetireAfter is the time after which the leader may drop it. It is zero until that time is decided.
	RetireAfter time.Time
	// Found reports whether the CA is in ca.crt although the leader has no record of adding it.
	Found bool
}

// Policy says how long certificates live, and for which names leaves are valid.
type Policy struct {
	CALifetime   time.Duration
	LeafLifetime time.Duration
	Subject      Subject
}

// Step names what Advance did to an Authority.
type Step string

// The steps of a rotation, in order.
const (
	StepNone      Step = ""
	StepIntroduce Step = "introduce" // made the next CA, to be published in addition to the one that signs
	StepPromote   Step = "promote"   // made the next CA the signing one
	StepSchedule  Step = "schedule"  // decided when to drop a CA that was found in the bundle
	StepRetire    Step = "retire"    // dropped a former CA from the bundle
	StepTidy      Step = "tidy"      // repaired derived content; neither CA changes
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

// current returns the CAs that sign, now or next.
func (a Authority) current() []*x509.Certificate {
	current := []*x509.Certificate{a.Signing.Certificate}
	if a.Next != nil {
		current = append(current, a.Next.Certificate)
	}
	return current
}

// Bundle returns the certificates that clients must trust, each once. The oldest is first, whichever CA signs, so a promotion does
// not change what is published. The result does not depend on the time, so a wrong clock drops nothing.
func (a Authority) Bundle() []*x509.Certificate {
	bundle := a.current()
	for _, f := range a.Old {
		bundle = append(bundle, f.Certificate)
	}
	return oldestFirst(bundle)
}

// trusting returns a with the given former CAs and no others. It keeps at most maxFormer: first those that the leader has a record
// of, then those that retire last, then the youngest. It leaves out a found CA that would make the bundle larger than maxBundle.
func (a Authority) trusting(old ...Former) Authority {
	old = slices.Clone(old)
	slices.SortStableFunc(old, func(x, y Former) int {
		switch {
		case y.Found && !x.Found:
			return -1
		case x.Found && !y.Found:
			return 1
		}
		return cmp.Or(y.RetireAfter.Compare(x.RetireAfter), y.NotBefore.Compare(x.NotBefore))
	})
	a.Old = nil
	seen := map[string]bool{}
	size := 0
	for _, c := range a.current() {
		seen[string(c.Raw)] = true
		size += len(encodeCertificate(c))
	}
	for _, f := range old {
		length := len(encodeCertificate(f.Certificate))
		if seen[string(f.Raw)] || len(a.Old) == maxFormer || f.Found && size+length > maxBundle {
			continue
		}
		seen[string(f.Raw)] = true
		size += length
		a.Old = append(a.Old, f)
	}
	if a.Previous != nil && !slices.ContainsFunc(a.Old, func(f Former) bool { return f.Equal(a.Previous.Certificate) }) {
		a.Previous = nil
	}
	return a
}

// Advance takes at most one step of the rotation, if one is due at now. The argument published reports whether every client has
// trusted Next for long enough to sign with it. Advance does not change a. It returns what to store instead; if nothing is due,
// that is a itself, with StepNone.
//
// The caller must have read a after it took now. It must store the result only if no other process has changed the Secret since
// that read. A leaf is issued only from a Secret that was read after the leaf's time of issue. So leaves of the old CA expire
// LeafLifetime after the promotion was stored, plus or minus the difference between two replicas' clocks.
func (a Authority) Advance(now time.Time, p Policy, published bool) (Authority, Step, error) {
	switch {
	case a.Next != nil && published:
		promoted := a
		promoted.Signing, promoted.Next, promoted.Previous = *a.Next, nil, &a.Signing
		return promoted.trusting(slices.Concat(a.Old, []Former{{Certificate: a.Signing.Certificate, RetireAfter: retireAfter(now, p)}})...), StepPromote, nil

	case a.wantsRotation(now) && a.Postponed(now) == nil:
		next, err := IssueCA(caName, now, p.CALifetime)
		if err != nil {
			return a, StepNone, err
		}
		introduced := a
		introduced.Next, introduced.RotationRequested = &next, false
		return introduced, StepIntroduce, nil

	case slices.ContainsFunc(a.Old, func(f Former) bool { return f.RetireAfter.IsZero() }):
		old := slices.Clone(a.Old)
		for i, f := range old {
			if f.RetireAfter.IsZero() {
				old[i] = Former{Certificate: f.Certificate, RetireAfter: retireAfter(now, p)}
			}
		}
		return a.trusting(old...), StepSchedule, nil
	}
	valid := slices.DeleteFunc(slices.Clone(a.Old), func(f Former) bool { return now.Round(0).After(f.RetireAfter) })
	if len(valid) < len(a.Old) {
		return a.trusting(valid...), StepRetire, nil
	}
	return a, StepNone, nil
}

// wantsRotation reports whether a rotation should begin.
func (a Authority) wantsRotation(now time.Time) bool {
	return a.Next == nil && (a.RotationRequested || NeedsRenewal(a.Signing.Certificate, now))
}

// Postponed returns why a rotation that should begin does not, or nil. A rotation that is due by the CA's age does not wait until a
// former CA retires: without requested rotations there are few former CAs.
func (a Authority) Postponed(now time.Time) error {
	if !a.wantsRotation(now) {
		return nil
	}
	if size := len(EncodeBundle(a.Bundle())); size > maxBundle {
		return fmt.Errorf("the CA bundle has %d bytes, and it is copied into every webhook entry: take certificates out of %s until it has %d", size, bundleKey, maxBundle)
	}
	if len(a.Old) < maxFormer || NeedsRenewal(a.Signing.Certificate, now) {
		return nil
	}
	first := slices.MinFunc(a.Old, func(x, y Former) int { return x.RetireAfter.Compare(y.RetireAfter) })
	return fmt.Errorf("%d former CAs are trusted, as many as may be, because certificates of them may be served: the rotation begins when the first of them retires, at %s; to drop former CAs now, set the annotation %s to a time in the past",
		len(a.Old), first.RetireAfter.UTC().Format(time.RFC3339), RetireAfterAnnotation)
}

// retireAfter returns the time at which all leaves have expired that a CA issued before it stopped signing at now. Replicas' clocks
// may differ by Backdate; if leaves live for less than that, by the life of a leaf.
func retireAfter(now time.Time, p Policy) time.Time {
	return now.Round(0).Add(p.LeafLifetime + min(Backdate, p.LeafLifetime)).Truncate(time.Second).Add(time.Second)
}

// usable reports whether the CA can issue leaves at now that API servers accept.
func (ca KeyPair) usable(now time.Time, p Policy) bool {
	return ca.Certificate != nil && canSign(ca.Certificate) && ca.vouches(p.Subject, now) == nil
}

// vouches checks that API servers accept a leaf of the CA: the CA is valid at now, and may sign for these names, and for servers.
func (ca KeyPair) vouches(subject Subject, now time.Time) error {
	leaf, err := ca.IssueLeaf(subject, now, Backdate)
	if err != nil {
		return err
	}
	return Verify(leaf, encodeCertificate(ca.Certificate), "", now) // the CA's name constraints are checked for all names
}

func canSign(cert *x509.Certificate) bool {
	return cert.IsCA && (cert.KeyUsage == 0 || cert.KeyUsage&x509.KeyUsageCertSign != 0)
}

// Replacement returns what to store instead of a Secret that cannot be used. It takes the first usable one of: the CA that this
// replica remembers, the next CA of a rotation, the previous CA. If there is none and may is ByAny, it makes a new CA. Otherwise it
// returns an error.
//
// If the pair in the Secret could sign for this operator at some time of its life, it is kept as Previous. The certificates in the
// Secret stay trusted, because replicas may serve valid leaves of them.
func Replacement(secret *corev1.Secret, remembered *Authority, may Replaceable, now time.Time, p Policy) (Authority, error) {
	former := formersIn(secret)
	next, previous := decodePair(secret, nextCertKey, nextKeyKey), decodePair(secret, previousCertKey, previousKeyKey)
	if previous != nil && !slices.ContainsFunc(former, func(f Former) bool { return f.Equal(previous.Certificate) }) {
		previous = nil // no longer trusted: its key may have leaked
	}
	var a Authority
	switch {
	case remembered != nil && remembered.Signing.usable(now, p):
		a = *remembered
	case next != nil && next.usable(now, p):
		a.Signing = *next
	case previous != nil && previous.usable(now, p):
		a.Signing = *previous
	case may == ByAny:
		var err error
		if a, err = NewAuthority(now, p); err != nil {
			return Authority{}, err
		}
	default:
		return Authority{}, errors.New("this process remembers no CA that could be used instead, and the Secret has none")
	}
	if a.Previous == nil {
		a.Previous = previous
	}
	retire := retireAfter(now, p)
	switch replaced, err := parseKeyPair(secret.Data[signingCertKey], secret.Data[signingKeyKey]); {
	case err != nil: // the certificate may be valid, only its key is not
		signing, _ := ParseBundle(secret.Data[signingCertKey])
		for _, cert := range signing {
			if canSign(cert) {
				former = append(former, Former{Certificate: cert, RetireAfter: retire})
			}
		}
	case canSign(replaced.Certificate) && replaced.vouches(p.Subject, withinLife(replaced.Certificate, now)) == nil:
		former = append(former, Former{Certificate: replaced.Certificate, RetireAfter: retire})
		a.Previous = &replaced
	}
	for i := range former {
		if former[i].RetireAfter.IsZero() {
			former[i].RetireAfter = retire
		}
	}
	return a.trusting(slices.Concat(former, a.Old)...), nil
}

// stored reports whether the Secret holds a as Encode would write it.
func (a Authority) stored(secret *corev1.Secret) bool {
	want := secret.DeepCopy()
	if a.Encode(want) != nil {
		return false
	}
	for _, key := range []string{RetireAfterAnnotation, FormerAnnotation, FormatAnnotation} {
		if want.Annotations[key] != secret.Annotations[key] {
			return false
		}
	}
	for _, key := range []string{nextCertKey, previousCertKey, previousKeyKey} { // a pair that is broken is removed
		if (want.Data[key] == nil) != (secret.Data[key] == nil) {
			return false
		}
	}
	return bytes.Equal(want.Data[bundleKey], secret.Data[bundleKey])
}
