package certs_test

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sidecarset/operator/certs"
)

var policy = certs.Policy{CALifetime: 365 * day, LeafLifetime: 30 * day}

func TestAdvance(t *testing.T) {
	signing, next, old := issueCA(t, start, 365*day), issueCA(t, start, 365*day), issueCA(t, start, 300*day)
	oldCAs := func(at time.Time) []certs.Former {
		return []certs.Former{{Certificate: old.Certificate, RetireAfter: at}}
	}
	steady := certs.Authority{Signing: signing}
	rotating := certs.Authority{Signing: signing, Next: &next, Old: oldCAs(start.Add(day))}
	retiring := certs.Authority{Signing: signing, Old: oldCAs(start.Add(10 * day))}
	requested := certs.Authority{Signing: signing, RotationRequested: true}

	tests := map[string]struct {
		from      certs.Authority
		at        time.Time
		published bool
		step      certs.Step
		want      []*x509.Certificate // the bundle afterwards; nil for one of ours, which is new
	}{
		"does nothing before two thirds of a CA's life": {
			steady, start.Add(243 * day), false, certs.StepNone, []*x509.Certificate{signing.Certificate}},
		"introduces the next CA at two thirds": {
			steady, start.Add(244 * day), false, certs.StepIntroduce, []*x509.Certificate{signing.Certificate, nil}},
		"introduces the next CA when asked": {
			requested, start, false, certs.StepIntroduce, []*x509.Certificate{signing.Certificate, nil}},
		"introduces no second one, and retires nothing meanwhile": {
			certs.Authority{Signing: signing, Next: &next}, start.Add(300 * day), false, certs.StepNone,
			[]*x509.Certificate{signing.Certificate, next.Certificate}},
		"promotes a CA that is published, keeping all others": {
			rotating, start.Add(250 * day), true, certs.StepPromote,
			[]*x509.Certificate{next.Certificate, signing.Certificate, old.Certificate}},
		"keeps an old CA until its last leaf has expired": {
			retiring, start.Add(10 * day), false, certs.StepNone, []*x509.Certificate{signing.Certificate, old.Certificate}},
		"drops an old CA after its last leaf has expired": {
			retiring, start.Add(10*day + time.Second), false, certs.StepRetire, []*x509.Certificate{signing.Certificate}},
		"settles when to drop a CA that a user added": {
			certs.Authority{Signing: signing, Old: oldCAs(time.Time{})}, start, false, certs.StepSchedule,
			[]*x509.Certificate{signing.Certificate, old.Certificate}},
		"rotates first and retires later": {
			retiring, start.Add(250 * day), false, certs.StepIntroduce,
			[]*x509.Certificate{signing.Certificate, nil, old.Certificate}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, step, err := tc.from.Advance(tc.at, policy, tc.published)
			if err != nil {
				t.Fatalf("Advance: %v", err)
			}
			if step != tc.step {
				t.Errorf("step %q, want %q", step, tc.step)
			}
			bundle := got.Bundle()
			if len(bundle) != len(tc.want) {
				t.Fatalf("bundle of %d certificates, want %d", len(bundle), len(tc.want))
			}
			for _, want := range tc.want {
				if want != nil && !slices.ContainsFunc(bundle, want.Equal) {
					t.Errorf("the bundle has lost %s", want.Subject)
				}
			}
			if got := got.Signing.Certificate.Equal(tc.from.Signing.Certificate); got != (tc.step != certs.StepPromote) {
				t.Errorf("the same CA signs: %v", got)
			}
		})
	}
}

// Each change of what is published costs a write per object, and API servers rebuild what they
// derived from it.
func TestPromotionChangesNothingThatIsPublished(t *testing.T) {
	next := issueCA(t, start.Add(240*day), 365*day)
	a := certs.Authority{Signing: issueCA(t, start, 365*day), Next: &next}
	promoted, step, err := a.Advance(start.Add(241*day), policy, true)
	if err != nil || step != certs.StepPromote {
		t.Fatalf("Advance: %q, %v", step, err)
	}
	if !bytes.Equal(certs.EncodeBundle(a.Bundle()), certs.EncodeBundle(promoted.Bundle())) {
		t.Error("the bundle has changed")
	}
}

// Advance decides when an old CA may be dropped: not before all leaves have expired that it
// issued until it ceased to sign.
func TestAdvanceRetiresAfterTheLastLeaf(t *testing.T) {
	next := issueCA(t, start, 365*day)
	a := certs.Authority{Signing: issueCA(t, start, 365*day), Next: &next}
	last := issueLeaf(t, a.Signing, start, policy.LeafLifetime)

	promoted, _, err := a.Advance(start, policy, true)
	if err != nil {
		t.Fatalf("Advance: %v", err)
	}
	if spare := promoted.Old[0].RetireAfter.Sub(last.Leaf.NotAfter); spare < certs.Backdate {
		t.Errorf("the old CA goes %s after its last leaf, want %s for clocks that differ", spare, certs.Backdate)
	}
	retired, step, err := promoted.Advance(promoted.Old[0].RetireAfter.Add(time.Second), policy, false)
	if err != nil || step != certs.StepRetire || len(retired.Old) != 0 || retired.Previous != nil {
		t.Errorf("got step %q, error %v, %d old CAs, previous %v", step, err, len(retired.Old), retired.Previous)
	}
}

func TestDecodeAuthorityReadsWhatEncodeWrote(t *testing.T) {
	next, old, older := issueCA(t, start, 365*day), issueCA(t, start, 365*day), issueCA(t, start, 365*day)
	want := certs.Authority{
		Signing:           issueCA(t, start, 365*day),
		Next:              &next,
		Previous:          &old,
		Old:               []certs.Former{{Certificate: old.Certificate, RetireAfter: start.Add(30 * day)}, {Certificate: older.Certificate, RetireAfter: start.Add(20 * day)}},
		RotationRequested: true,
	}
	secret := secretOf(t, want)
	secret.Data["theirs"] = []byte("x")

	got, err := certs.DecodeAuthority(secret, start)
	if err != nil {
		t.Fatalf("DecodeAuthority: %v", err)
	}
	switch {
	case !got.Signing.Certificate.Equal(want.Signing.Certificate),
		!got.Next.Certificate.Equal(want.Next.Certificate),
		!got.Previous.Certificate.Equal(want.Previous.Certificate),
		!slices.EqualFunc(got.Old, want.Old, func(a, b certs.Former) bool { return a.Equal(b.Certificate) && a.RetireAfter.Equal(b.RetireAfter) }),
		!got.RotationRequested:
		t.Errorf("got %+v", got)
	}
	checkError(t, certs.Verify(issueLeaf(t, *got.Next, start, day), bundleOf(next), host, start), "")

	// Once the rotation is over, nothing of the next CA remains, and members that are not the
	// operator's remain.
	if err := (certs.Authority{Signing: got.Signing}).Encode(secret); err != nil {
		t.Fatalf("Encode: %v", err)
	}
	if len(secret.Data) != 4 || string(secret.Data["theirs"]) != "x" || len(secret.Annotations) != 2 {
		t.Errorf("%d keys and annotations %v are left", len(secret.Data), secret.Annotations)
	}
}

func TestDecodeAuthority(t *testing.T) {
	good := certs.Authority{Signing: issueCA(t, start, 365*day)}
	other := issueCA(t, start, 365*day)

	tests := map[string]struct {
		change      func(*corev1.Secret)
		at          time.Time
		err         string
		replaceable certs.Replaceable
	}{
		"accepts what is there":           {func(*corev1.Secret) {}, start, "", certs.Never},
		"does without ca.crt":             {func(s *corev1.Secret) { delete(s.Data, "ca.crt") }, start, "", certs.Never},
		"does with a broken ca.crt":       {func(s *corev1.Secret) { s.Data["ca.crt"] = []byte("garbage") }, start, "", certs.Never},
		"does with a broken next CA":      {func(s *corev1.Secret) { s.Data["next.crt"] = []byte("garbage") }, start, "", certs.Never},
		"does with half a next CA":        {func(s *corev1.Secret) { s.Data["next.crt"] = s.Data["tls.crt"] }, start, "", certs.Never},
		"does with the CA being its next": {nextIsSigning, start, "", certs.Never},
		"does with a broken time":         {func(s *corev1.Secret) { s.Annotations = map[string]string{certs.RetireAfterAnnotation: "soon"} }, start, "", certs.Never},
		"reports an empty Secret":         {func(s *corev1.Secret) { s.Data = nil }, start, "tls.crt or tls.key is empty", certs.ByAny},
		"reports a missing key":           {func(s *corev1.Secret) { delete(s.Data, "tls.key") }, start, "tls.crt or tls.key is empty", certs.ByAny},
		"reports a broken certificate":    {func(s *corev1.Secret) { s.Data["tls.crt"] = []byte("garbage") }, start, "are not a certificate and its key", certs.ByAny},
		"reports a broken key":            {func(s *corev1.Secret) { s.Data["tls.key"] = []byte("garbage") }, start, "are not a certificate and its key", certs.ByAny},
		"reports a key of another CA": {func(s *corev1.Secret) {
			s.Data["tls.key"] = secretOf(t, certs.Authority{Signing: other}).Data["tls.key"]
		}, start, "are not a certificate and its key", certs.ByAny},
		"reports an expired CA":               {func(*corev1.Secret) {}, start.Add(366 * day), "the CA expired at 2031-01-01T00:00:00Z", certs.ByAny},
		"keeps a CA of the future":            {func(*corev1.Secret) {}, start.Add(-2 * time.Hour), "is the clock right?", certs.ByKnown},
		"keeps another program's certificate": {func(s *corev1.Secret) { s.Data = servingSecret(t).Data }, start, "belongs to another program", certs.Never},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			secret := secretOf(t, good)
			tc.change(secret)
			_, err := certs.DecodeAuthority(secret, tc.at)
			checkError(t, err, tc.err)
			if err == nil {
				return
			}
			checkError(t, err, "Secret system/ca") // names the object
			if strings.Contains(err.Error(), "garbage") {
				t.Errorf("the error shows what the Secret holds: %v", err)
			}
			var secretErr *certs.SecretError
			if !errors.As(err, &secretErr) || secretErr.Replaceable != tc.replaceable {
				t.Errorf("error %#v, want a SecretError with Replaceable = %v", err, tc.replaceable)
			}
		})
	}
}

func TestReplacement(t *testing.T) {
	good := certs.Authority{Signing: issueCA(t, start, 365*day)}
	next := issueCA(t, start, 365*day)
	broken := secretOf(t, certs.Authority{Signing: good.Signing})
	broken.Data["tls.key"] = []byte("garbage")
	rotating := secretOf(t, certs.Authority{Signing: good.Signing, Next: &next})
	rotating.Data["tls.key"] = []byte("garbage")
	previous, future := issueCA(t, start, 365*day), issueCA(t, start.Add(300*day), 365*day)
	formerly := []certs.Former{{Certificate: previous.Certificate, RetireAfter: start.Add(30 * day)}}
	early := secretOf(t, certs.Authority{Signing: future, Previous: &previous, Old: formerly})
	dropped := early.DeepCopy()
	dropped.Data["ca.crt"] = dropped.Data["tls.crt"]

	tests := map[string]struct {
		secret     *corev1.Secret
		remembered *certs.Authority
		at         time.Time
		signing    *x509.Certificate // nil for a new one
		old        int
	}{
		"makes a CA for an empty Secret":                 {&corev1.Secret{}, nil, start, nil, 0},
		"restores what a replica remembers":              {&corev1.Secret{}, &good, start, good.Signing.Certificate, 0},
		"does not restore what has expired":              {&corev1.Secret{}, &good, start.Add(366 * day), nil, 0},
		"keeps trusting a CA whose key is lost":          {broken, nil, start, nil, 1},
		"keeps trusting a CA that seems to have expired": {broken, nil, start.Add(366 * day), nil, 1},
		"takes the CA that a rotation had introduced":    {rotating, nil, start, next.Certificate, 1},
		"takes the CA that signed before":                {early, nil, start, previous.Certificate, 1},
		"takes no CA that is not trusted any more":       {dropped, nil, start, nil, 1},
		"keeps trusting what it replaces":                {early, &good, start, good.Signing.Certificate, 2},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := certs.Replacement(tc.secret, tc.remembered, certs.ByAny, tc.at, policy)
			if err != nil {
				t.Fatalf("Replacement: %v", err)
			}
			if tc.signing != nil && !got.Signing.Certificate.Equal(tc.signing) {
				t.Error("another CA signs")
			}
			if len(got.Old) != tc.old {
				t.Errorf("%d old CAs, want %d", len(got.Old), tc.old)
			}
			for _, f := range got.Old {
				if f.RetireAfter.IsZero() {
					t.Errorf("no time is set to drop %s", f.Subject)
				}
			}
			if _, err := certs.DecodeAuthority(secretOf(t, got), tc.at); err != nil {
				t.Errorf("what replaces it cannot be used: %v", err)
			}
		})
	}
}

// secretOf returns a Secret that holds the Authority.
func secretOf(t *testing.T, a certs.Authority) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	secret.Namespace, secret.Name = "system", "ca"
	if a.RotationRequested {
		secret.Annotations = map[string]string{"theirs": "x"}
	}
	if err := a.Encode(secret); err != nil {
		t.Fatalf("Encode: %v", err)
	}
	checkHoldsCertificatesOnly(t, secret.Data["ca.crt"])
	return secret
}

// checkHoldsCertificatesOnly looks at the types of the blocks: the text of a
// certificate may spell any word.
func checkHoldsCertificatesOnly(t *testing.T, bundle []byte) {
	t.Helper()
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			t.Errorf("the bundle holds a block of type %q", block.Type)
		}
	}
}

// servingSecret holds a key pair that works, but is no CA.
func servingSecret(t *testing.T) *corev1.Secret {
	t.Helper()
	leaf := issueLeaf(t, issueCA(t, start, 365*day), start, 30*day)
	return secretOf(t, certs.Authority{Signing: certs.KeyPair{Certificate: leaf.Leaf, Key: leaf.PrivateKey.(crypto.Signer)}})
}

func nextIsSigning(s *corev1.Secret) {
	s.Data["next.crt"], s.Data["next.key"] = s.Data["tls.crt"], s.Data["tls.key"]
}
