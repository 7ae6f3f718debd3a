package certs

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// made returns a CA that was made some days before noon.
func made(t *testing.T, days int) KeyPair {
	t.Helper()
	ca, err := IssueCA("test", noon.Add(-time.Duration(days)*day), caLife)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func secretOf(t *testing.T, a Authority) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := a.Encode(secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

// names are the CAs of an authority by the names of a case; "new" for others.
func names(a Authority, of map[string]*x509.Certificate) (found [3]string) {
	for i, cert := range []*x509.Certificate{a.Current.Certificate, a.Next.Certificate, a.Previous} {
		if cert == nil {
			continue
		}
		found[i] = "new"
		for name, ca := range of {
			if ca.Equal(cert) {
				found[i] = name
			}
		}
	}
	return found
}

func TestWhatTheSecretShouldHold(t *testing.T) {
	t.Parallel()
	garbage := func(ca KeyPair) KeyPair { return KeyPair{Certificate: ca.Certificate, Key: made(t, 0).Key} }
	subject := Subject{DNSNames: []string{"webhook.ours.svc"}}
	for name, tc := range map[string]struct {
		current, next KeyPair
		change        string
		want          [3]string // current, next, previous
		signs         string    // meanwhile
	}{
		"both are young":                           {made(t, 200), made(t, 100), "", [3]string{"current", "next", "previous"}, "current"},
		"next is a third of its life old":          {made(t, 250), made(t, 122), "rotated", [3]string{"next", "new", "current"}, "current"},
		"current ends in 29 days":                  {made(t, 336), made(t, 10), "replaced", [3]string{"next", "new", "current"}, "next"},
		"current ends in 31 days":                  {made(t, 334), made(t, 10), "", [3]string{"current", "next", "previous"}, "current"},
		"current has another key":                  {garbage(made(t, 200)), made(t, 100), "replaced", [3]string{"next", "new", "current"}, "next"},
		"next has another key":                     {made(t, 200), garbage(made(t, 100)), "replaced", [3]string{"current", "new", "previous"}, "current"},
		"both have another key":                    {garbage(made(t, 200)), garbage(made(t, 100)), "replaced", [3]string{"new", "new", "current"}, ""},
		"there is no next one, as in format 1":     {made(t, 200), KeyPair{}, "replaced", [3]string{"current", "new", "previous"}, "current"},
		"both have ended: a year off":              {made(t, 600), made(t, 480), "replaced", [3]string{"new", "new", "current"}, ""},
		"current is a leaf":                        {leafOf(t, made(t, 100)), made(t, 100), "replaced", [3]string{"next", "new", "current"}, "next"},
		"current may sign for another domain only": {constrained(t), made(t, 100), "replaced", [3]string{"next", "new", "current"}, "next"},
		"the clock is half a year behind":          {made(t, -180), made(t, -180), "", [3]string{"current", "next", "previous"}, "current"},
	} {
		t.Run(name, func(t *testing.T) {
			a := Authority{tc.current, tc.next, made(t, 300).Certificate}
			of := map[string]*x509.Certificate{"current": a.Current.Certificate, "previous": a.Previous}
			if a.Next.Certificate != nil {
				of["next"] = a.Next.Certificate
			}
			due, change, _ := a.Due(noon, subject)
			if diff := cmp.Diff(tc.want, names(due, of)); diff != "" || change != tc.change {
				t.Errorf("change %q, CAs (-want +got):\n%s", change, diff)
			}
			if _, again, _ := due.Due(noon, subject); again != "" {
				t.Errorf("what is due is to be %s", again)
			}
			signing, err := a.Signing(noon, subject)
			if (err != nil) != (tc.signs == "") || err == nil && !signing.Certificate.Equal(of[tc.signs]) {
				t.Errorf("it signs with %v, %v", signing.Certificate, err)
			}
			read := Decode(secretOf(t, due))
			if diff := cmp.Diff(tc.want, names(read, of)); diff != "" || read.Current.Key == nil || read.Next.Key == nil {
				t.Errorf("read again (-want +got):\n%s", diff)
			}
		})
	}
}

func leafOf(t *testing.T, ca KeyPair) KeyPair {
	t.Helper()
	leaf, err := ca.IssueLeaf(Subject{DNSNames: []string{"webhook.ours.svc"}})
	if err != nil {
		t.Fatal(err)
	}
	return KeyPair{leaf.Leaf, ca.Key}
}

// constrained is a CA that may sign only for names of example.org, as the CA of a company may be.
func constrained(t *testing.T) KeyPair {
	t.Helper()
	ca := made(t, 10)
	template := *ca.Certificate
	template.PermittedDNSDomains, template.PermittedDNSDomainsCritical = []string{"example.org"}, true
	cert, err := sign(&template, &template, ca.Key.Public(), ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	return KeyPair{cert, ca.Key}
}

// Garbage in the Secret is never trusted, and takes no CA with it.
func TestDecodeLeavesOutWhatDoesNotParse(t *testing.T) {
	t.Parallel()
	a := Authority{made(t, 3), made(t, 2), made(t, 4).Certificate}
	for member, want := range map[string]int{currentCertKey: 2, currentKeyKey: 3, nextCertKey: 2, nextKeyKey: 3, previousCertKey: 2} {
		secret := secretOf(t, a)
		secret.Data[member] = []byte("garbage")
		if got := Decode(secret).CAs(); len(got) != want {
			t.Errorf("with garbage in %s there are %d CAs, want %d", member, len(got), want)
		}
	}
	if got := Decode(&corev1.Secret{}).CAs(); len(got) != 0 {
		t.Errorf("an empty Secret has %d CAs", len(got))
	}
}

// A backup that is restored has the annotation, and is not the first CA.
func TestOnlyTheOperatorsOwnSecretIsTheFirst(t *testing.T) {
	t.Parallel()
	by := func(managers ...string) *corev1.Secret {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{firstAnnotation: "true"}, CreationTimestamp: metav1.NewTime(noon)}}
		for i, manager := range managers {
			secret.ManagedFields = append(secret.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager, Time: new(metav1.NewTime(noon.Add(time.Duration(i) * time.Minute)))})
		}
		return secret
	}
	if !isFirst(by(FieldOwner)) || isFirst(by("kubectl-replace")) || isFirst(by(FieldOwner, "velero")) || isFirst(&corev1.Secret{}) {
		t.Error("another program's Secret counts, or the operator's does not")
	}
	if at := writtenAt(by(FieldOwner, "kubectl-edit")); !at.Equal(noon.Add(time.Minute)) {
		t.Errorf("it was written at %s", at)
	}
}

func TestTrustIsAddedAtOnceAndRemovedLate(t *testing.T) {
	t.Parallel()
	old, a, b, foreign := made(t, 9).Certificate, made(t, 8).Certificate, made(t, 7).Certificate, made(t, 6).Certificate
	r, now := &removal{wait: 5 * time.Minute}, time.Now()
	type cas = []*x509.Certificate
	for _, step := range []struct {
		name      string
		after     time.Duration
		named     cas
		published []cas
		want      cas
	}{
		{"the Secret has two new CAs", 0, cas{a, b}, []cas{{old}, {old}}, cas{old, a, b}},
		{"one bundle has them", 10 * time.Minute, cas{a, b}, []cas{{old, a, b}, {old}}, cas{old, a, b}},
		{"all have", time.Second, cas{a, b}, []cas{{old, a, b}, {old, a, b}}, cas{old, a, b}},
		{"for less than five minutes", 5*time.Minute - time.Second, cas{a, b}, []cas{{old, a, b}}, cas{old, a, b}},
		{"for five minutes", time.Second, cas{a, b}, []cas{{old, a, b}}, cas{a, b}},
		{"one bundle is behind", time.Second, cas{a, b}, []cas{{a, b}, {old, a, b}}, cas{a, b}},
		{"another program replaces one", time.Hour, cas{a, b}, []cas{{a, b}, {foreign}}, cas{a, b, foreign}},
		{"it is mended", time.Second, cas{a, b}, []cas{{a, b, foreign}}, cas{a, b, foreign}},
		{"after five minutes", 5 * time.Minute, cas{a, b}, []cas{{a, b, foreign}}, cas{a, b}},
		{"another program adds one", time.Hour, cas{a, b}, []cas{{a, b}, {a, b, foreign}}, cas{a, b}},
		{"the Secret has others", time.Hour, cas{b, foreign}, []cas{{a, b, foreign}}, cas{a, b, foreign}},
		{"after five minutes again", 5 * time.Minute, cas{b, foreign}, []cas{{a, b, foreign}}, cas{b, foreign}},
		{"all bundles are empty", time.Second, cas{b, foreign}, nil, cas{b, foreign}},
	} {
		now = now.Add(step.after)
		if got := r.want(step.named, step.published, now); string(got) != string(EncodeBundle(step.want)) {
			parsed, _ := ParseBundle(got)
			t.Errorf("%s: %d CAs are wanted, want %d", step.name, len(parsed), len(step.want))
		}
	}
	if got := (&removal{wait: time.Minute}).want(cas{b}, []cas{{a, b}}, now); string(got) != string(EncodeBundle(cas{a, b})) {
		t.Error("a new leader does not begin to wait again")
	}
}

// supplying is a supply whose material a test sets.
type supplying struct{ *material }

func (s supplying) String() string                          { return "the test" }
func (s supplying) load(context.Context) (*material, error) { return s.material, nil }

// A bundle that refuses the next leaf holds it back until the old one ends soon: in the last day, or the last quarter of a
// shorter life.
func TestALeafEndsSoon(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		life, left time.Duration
		want       bool
	}{
		{30 * day, day, false}, {30 * day, day - time.Second, true},
		{time.Hour, 15 * time.Minute, false}, {time.Hour, 15*time.Minute - time.Second, true},
	} {
		leaf := &tls.Certificate{Leaf: &x509.Certificate{NotBefore: noon.Add(tc.left - tc.life), NotAfter: noon.Add(tc.left)}}
		if got := (&held{Certificate: leaf}).judge(view{}, noon).endsSoon; got != tc.want {
			t.Errorf("of a life of %s, %s are left: ends soon is %t", tc.life, tc.left, got)
		}
	}
}

func issued(t *testing.T, lifetime time.Duration) KeyPair {
	t.Helper()
	ca, err := IssueCA("test", time.Now(), lifetime)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// suppliedBy returns the files of a leaf that begins now.
func suppliedBy(t *testing.T, ca KeyPair, subject Subject) map[string][]byte {
	t.Helper()
	pair, err := ca.IssueLeaf(subject)
	if err != nil {
		t.Fatal(err)
	}
	template := *pair.Leaf
	template.NotBefore = time.Now()
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		t.Fatal("the key cannot sign")
	}
	leaf, err := sign(&template, ca.Certificate, key.Public(), ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	secret := secretOf(t, Authority{Current: KeyPair{leaf, key}, Next: ca})
	return map[string][]byte{suppliedCertKey: secret.Data[currentCertKey], suppliedKeyKey: secret.Data[currentKeyKey], suppliedCAKey: encodeCertificate(ca.Certificate)}
}

func TestSuppliedPartsHaveToBelongTogether(t *testing.T) {
	t.Parallel()
	subject := Subject{DNSNames: []string{"webhook.ours.svc"}}
	ca, other := issued(t, caLife), issued(t, caLife)
	good, foreign := suppliedBy(t, ca, subject), suppliedBy(t, other, subject)
	if m, err := supplied(supplying{}, good, subject.DNSNames[0]); err != nil || !m.signing.Certificate.Equal(ca.Certificate) || !m.written.Equal(m.leaf.Leaf.NotBefore) {
		t.Errorf("a good pair: %v", err)
	}
	for part, content := range map[string][]byte{suppliedCertKey: foreign[suppliedCertKey], suppliedKeyKey: foreign[suppliedKeyKey], suppliedCAKey: foreign[suppliedCAKey]} {
		spoiled := maps.Clone(good)
		spoiled[part] = content
		if _, err := supplied(supplying{}, spoiled, subject.DNSNames[0]); err == nil {
			t.Errorf("%s of another pair is taken", part)
		}
		spoiled[part] = good[part][:len(good[part])/2]
		if _, err := supplied(supplying{}, spoiled, subject.DNSNames[0]); err == nil {
			t.Errorf("half of %s is taken", part)
		}
	}
	if _, err := supplied(supplying{}, good, "elsewhere.svc"); err == nil {
		t.Error("a leaf for another name is taken")
	}
}

// Other issuers do not back-date. A renewed leaf is served when API servers whose clocks are behind accept it.
func TestARenewedLeafIsServedWhenItIsMinutesOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		subject := Subject{DNSNames: []string{"webhook.ours.svc"}}
		ca := issued(t, caLife)
		load := func() *material {
			m, err := supplied(supplying{}, suppliedBy(t, ca, subject), subject.DNSNames[0])
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		p := newPublished(nil, subject, Targets{})
		p.observed = true
		from := supplying{load()}
		s := newSource(from, p, Options{Subject: subject, Times: DefaultTimes})
		for i, want := range []time.Duration{0, 5 * time.Minute, 5 * time.Minute} {
			if i > 0 {
				<-time.After(time.Hour)
				*from.material = *load()
			}
			begun := time.Now()
			for range 1000 {
				if err := s.Refresh(t.Context()); err != nil {
					t.Fatal(err)
				}
				if s.served.Leaf.Equal(from.leaf.Leaf) {
					break
				}
				<-time.After(time.Second)
			}
			if took := time.Since(begun).Round(time.Minute); took != want {
				t.Errorf("leaf %d is served after %s, want %s", i, took, want)
			}
		}
	})
}

// What a deleted object says keeps no replica from being ready.
func TestADeletedObjectIsForgotten(t *testing.T) {
	t.Parallel()
	subject, ca := Subject{DNSNames: []string{"webhook.ours.svc"}}, issued(t, caLife)
	leaf, err := ca.IssueLeaf(subject)
	if err != nil {
		t.Fatal(err)
	}
	p := newPublished(nil, subject, Targets{Mutating: "a"})
	c := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Webhooks: []admissionregistrationv1.MutatingWebhook{{
		ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: new("https://webhook.ours.svc/x"), CABundle: EncodeBundle([]*x509.Certificate{issued(t, caLife).Certificate})},
	}}}
	kind := objectKey{gvk: mutatingKind}
	p.take(kind, c)
	if accepted, refused := p.view().about(leaf, time.Now()); accepted != 0 || len(refused) != 1 {
		t.Fatalf("%d bundles accept the leaf, and others say %v", accepted, refused)
	}
	p.gone(kind, c)
	if _, refused := p.view().about(leaf, time.Now()); len(refused) != 0 {
		t.Errorf("it is deleted, and says %v", refused)
	}
}
