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
	// maxFormer is how many former CAs are trusted at most. Leaves live for 30 days by default, so that this is a rotation every four
	// days; one that is due by itself comes every eight months.
	maxFormer = 8
	// maxBundle is how large the bundle may become. It is copied into every webhook entry, and etcd takes objects of 1.5 MB.
	maxBundle = 64 << 10
)

// Authority is the content of the CA Secret: who signs now, who signs next, and who else is to be trusted.
type Authority struct {
	Signing KeyPair
	Next    *KeyPair // nil unless a rotation has begun
	// Previous is the pair that signed before, kept while its certificate is in Old: what to go back to if Signing cannot be used.
	Previous *KeyPair
	Old      []Former
	// RotationRequested says that somebody asked for a rotation before it is due.
	RotationRequested bool
}

// Former is a CA that no longer signs, while leaves of it may be served.
type Former struct {
	*x509.Certificate
	// RetireAfter is when it may be dropped. It is zero while that has not been settled.
	RetireAfter time.Time
	// Found says that it is in ca.crt although the leader does not remember to have put it there.
	Found bool
}

// Policy is how long certificates live, and what leaves vouch for.
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
	StepIntroduce Step = "introduce" // the next CA was made, to be published beside the one that signs
	StepPromote   Step = "promote"   // the next CA has become the signing one
	StepSchedule  Step = "schedule"  // it was settled when to drop a CA that was found in the bundle
	StepRetire    Step = "retire"    // a CA that no longer signs was dropped from the bundle
	StepTidy      Step = "tidy"      // what is derived was written as it should be; neither CA changes
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

// Bundle returns the certificates that clients must trust, each once. The oldest is first, whoever signs, so that a promotion changes
// nothing that is published. It does not depend on the time: a clock that is wrong drops nothing.
func (a Authority) Bundle() []*x509.Certificate {
	bundle := a.current()
	for _, f := range a.Old {
		bundle = append(bundle, f.Certificate)
	}
	bundle = MergeBundles(bundle)
	sortByAge(bundle)
	return bundle
}

// trusting returns a with these former CAs, and no others. At most maxFormer are kept: those that the leader knows of before those that
// it found, then the ones that retire last, then the youngest. What was found is not kept if it makes the bundle larger than maxBundle.
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
	if a.Previous != nil && !a.isFormer(a.Previous.Certificate) {
		a.Previous = nil
	}
	return a
}

func (a Authority) isFormer(cert *x509.Certificate) bool {
	return slices.ContainsFunc(a.Old, func(f Former) bool { return f.Equal(cert) })
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

// wantsRotation says whether a rotation should begin.
func (a Authority) wantsRotation(now time.Time) bool {
	return a.Next == nil && (a.RotationRequested || NeedsRenewal(a.Signing.Certificate, now))
}

// Postponed says why a rotation that should begin does not, or nil. One that is due by the CA's age waits for no former CA: these are
// few when nobody asks for rotations.
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

// retireAfter is when the last leaf has expired that was issued up to now by a CA that stops signing now. Replicas' clocks may
// differ by as much as we back-date; where leaves live for less than that, by as long as a leaf lives.
func retireAfter(now time.Time, p Policy) time.Time {
	return now.Round(0).Add(p.LeafLifetime + min(Backdate, p.LeafLifetime)).Truncate(time.Second).Add(time.Second)
}

// usable says whether leaves that API servers accept can be issued at now.
func (ca KeyPair) usable(now time.Time, p Policy) bool {
	return ca.Certificate != nil && canSign(ca.Certificate) && ca.vouches(p.Subject, now) == nil
}

// vouches checks that API servers accept a leaf of the CA: that the CA is valid at now, and may sign for these names, and for servers.
func (ca KeyPair) vouches(subject Subject, now time.Time) error {
	leaf, err := ca.IssueLeaf(subject, now, Backdate)
	if err != nil {
		return err
	}
	return Verify(leaf, encodeCertificate(ca.Certificate), "", now) // constraints are checked for all names
}

// mayVouch is vouches at some time in the CA's life.
func (ca KeyPair) mayVouch(subject Subject, now time.Time) error {
	switch cert := ca.Certificate; {
	case now.Round(0).Before(cert.NotBefore):
		now = cert.NotBefore
	case now.Round(0).After(cert.NotAfter):
		now = cert.NotAfter
	}
	return ca.vouches(subject, now)
}

func canSign(cert *x509.Certificate) bool {
	return cert.IsCA && (cert.KeyUsage == 0 || cert.KeyUsage&x509.KeyUsageCertSign != 0)
}

// Replacement returns what to store in place of a Secret that cannot be used: what a replica still remembers, else the CA that a
// rotation had introduced, else the one that signed before. If none of these is usable, it is a new CA where may allows that. The pair
// that the Secret holds is kept as Previous if it is one that could sign for us at some time, and certificates stay trusted that the
// Secret holds, because leaves signed by them may be served and be valid. The error says that there is nothing to put in place.
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
		return Authority{}, errors.New("no replica remembers a CA that could be used instead")
	}
	if a.Previous == nil {
		a.Previous = previous
	}
	retire := retireAfter(now, p)
	switch replaced, err := parseKeyPair(secret.Data[signingCertKey], secret.Data[signingKeyKey]); {
	case err != nil: // the certificate may be good
		signing, _ := ParseBundle(secret.Data[signingCertKey])
		for _, cert := range signing {
			if canSign(cert) {
				former = append(former, Former{Certificate: cert, RetireAfter: retire})
			}
		}
	case canSign(replaced.Certificate) && replaced.mayVouch(p.Subject, now) == nil:
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

// stored says whether the Secret holds a as Encode would write it.
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
