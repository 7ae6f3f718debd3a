package certs_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/certs"
)

const (
	day  = 24 * time.Hour
	host = "webhook.sidecarset-system.svc"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func issueCA(t *testing.T, at time.Time, lifetime time.Duration) certs.KeyPair {
	t.Helper()
	ca, err := certs.IssueCA("test", at, lifetime)
	if err != nil {
		t.Fatalf("IssueCA: %v", err)
	}
	return ca
}

func issueLeaf(t *testing.T, ca certs.KeyPair, at time.Time, lifetime time.Duration) *tls.Certificate {
	t.Helper()
	subject := certs.Subject{DNSNames: []string{host}, IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}}
	leaf, err := ca.IssueLeaf(subject, at, lifetime)
	if err != nil {
		t.Fatalf("IssueLeaf: %v", err)
	}
	return leaf
}

func bundleOf(cas ...certs.KeyPair) []byte {
	var list []*x509.Certificate
	for _, ca := range cas {
		list = append(list, ca.Certificate)
	}
	return certs.EncodeBundle(list)
}

func TestVerify(t *testing.T) {
	ca, other := issueCA(t, start, 365*day), issueCA(t, start, 365*day)
	leaf := issueLeaf(t, ca, start, 30*day)
	parsedLater := &tls.Certificate{Certificate: leaf.Certificate, PrivateKey: leaf.PrivateKey}

	tests := map[string]struct {
		leaf   *tls.Certificate
		bundle []byte
		host   string
		at     time.Time
		want   string // part of the error; "" for none
	}{
		"accepts the service name":            {leaf, bundleOf(ca), host, start, ""},
		"accepts an IPv4 address":             {leaf, bundleOf(ca), "127.0.0.1", start, ""},
		"accepts an IPv6 address":             {leaf, bundleOf(ca), "::1", start, ""},
		"accepts a leaf that is not parsed":   {parsedLater, bundleOf(ca), host, start, ""},
		"finds its CA behind another":         {leaf, bundleOf(other, ca), host, start, ""},
		"accepts a clock an hour behind":      {leaf, bundleOf(ca), host, start.Add(-time.Hour), ""},
		"refuses a clock further behind":      {leaf, bundleOf(ca), host, start.Add(-time.Hour - time.Second), "not yet valid"},
		"accepts the last second":             {leaf, bundleOf(ca), host, start.Add(30 * day), ""},
		"refuses an expired leaf":             {leaf, bundleOf(ca), host, start.Add(30*day + time.Second), "expired"},
		"refuses another name":                {leaf, bundleOf(ca), "other.sidecarset-system.svc", start, "not other.sidecarset-system.svc"},
		"refuses another address":             {leaf, bundleOf(ca), "127.0.0.2", start, "not 127.0.0.2"},
		"refuses another CA":                  {leaf, bundleOf(other), host, start, "unknown authority"},
		"refuses an empty bundle":             {leaf, nil, host, start, "bundle is empty"},
		"refuses a bundle without CA":         {leaf, []byte("Cg=="), host, start, "holds no certificate"},
		"refuses a missing certificate":       {nil, bundleOf(ca), host, start, "no certificate"},
		"refuses a CA as serving certificate": {&tls.Certificate{Certificate: [][]byte{ca.Certificate.Raw}}, bundleOf(ca), host, start, "not valid for any names"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			checkError(t, certs.Verify(tc.leaf, tc.bundle, tc.host, tc.at), tc.want)
		})
	}
}

func TestVerifyUsesTheChain(t *testing.T) {
	root := issueIntermediate(t, certs.KeyPair{})
	intermediate := issueIntermediate(t, root)
	leaf := issueLeaf(t, intermediate, start, 30*day)

	checkError(t, certs.Verify(leaf, bundleOf(root), host, start), "unknown authority")
	leaf.Certificate = append(leaf.Certificate, intermediate.Certificate.Raw)
	checkError(t, certs.Verify(leaf, bundleOf(root), host, start), "")
}

// issueIntermediate makes a CA that may sign CAs, as cert-manager's CAs may and the operator's
// may not. Without a parent it is a root.
func issueIntermediate(t *testing.T, parent certs.KeyPair) certs.KeyPair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{NotBefore: start, NotAfter: start.Add(365 * day), IsCA: true, BasicConstraintsValid: true}
	template.Subject.CommonName = "root"
	if parent.Certificate == nil {
		parent = certs.KeyPair{Certificate: template, Key: key}
	} else {
		template.Subject.CommonName = "intermediate"
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.Certificate, key.Public(), parent.Key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certs.KeyPair{Certificate: cert, Key: key}
}

func TestIssueLeafNeverOutlivesItsCA(t *testing.T) {
	ca := issueCA(t, start, 365*day)
	leaf := issueLeaf(t, ca, start.Add(360*day), 30*day)
	if got := leaf.Leaf.NotAfter; !got.Equal(ca.Certificate.NotAfter) {
		t.Errorf("leaf expires at %s, its CA at %s", got, ca.Certificate.NotAfter)
	}
}

func TestCAsIssuedAtOnceDiffer(t *testing.T) {
	a, b := issueCA(t, start, day), issueCA(t, start, day)
	if a.Certificate.SerialNumber.Cmp(b.Certificate.SerialNumber) == 0 {
		t.Error("equal serial numbers")
	}
	if bytes.Equal(a.Certificate.SubjectKeyId, b.Certificate.SubjectKeyId) {
		t.Error("equal key ids: a verifier could not find out which of them signed")
	}
}

func TestNeedsRenewal(t *testing.T) {
	ca := issueCA(t, start, 3600*day)
	tests := map[string]struct {
		lifetime time.Duration
		at       time.Time
		want     bool
	}{
		"not when new":                              {30 * day, start, false},
		"not before two thirds":                     {30 * day, start.Add(20*day - time.Second), false},
		"at two thirds":                             {30 * day, start.Add(20 * day), true},
		"after its end":                             {30 * day, start.Add(300 * day), true},
		"when the clock is set back too far":        {30 * day, start.Add(-2 * time.Hour), true},
		"not at once when the life is short":        {9 * time.Second, start.Add(5 * time.Second), false},
		"at two thirds when the life is short":      {9 * time.Second, start.Add(6 * time.Second), true},
		"not when the clock is set back a little":   {30 * day, start.Add(-30 * time.Minute), false},
		"at two thirds of a life cut by the CA's":   {7200 * day, start.Add(2400 * day), true},
		"not before that of a life cut by the CA's": {7200 * day, start.Add(2399 * day), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			leaf := issueLeaf(t, ca, start, tc.lifetime).Leaf
			if got := certs.NeedsRenewal(leaf, tc.at); got != tc.want {
				t.Errorf("NeedsRenewal = %v at %s, RenewAt %s", got, tc.at, certs.RenewAt(leaf))
			}
		})
	}
}

// A monotonic reading does not advance while a machine sleeps. The wall clock does.
func TestNeedsRenewalGoesByTheWallClock(t *testing.T) {
	now := time.Now()
	leaf := issueLeaf(t, issueCA(t, now, 365*day), now, 30*day).Leaf
	if !certs.NeedsRenewal(leaf, now.Add(21*day)) {
		t.Error("NeedsRenewal = false for a time with a monotonic reading")
	}
}

func TestParseBundle(t *testing.T) {
	a, b := issueCA(t, start, day), issueCA(t, start, day)
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("secret")})
	broken := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("no DER")})
	tests := map[string]struct {
		data string
		want []byte
		err  string
	}{
		"nothing is an empty bundle": {"", nil, ""},
		"blank is an empty bundle":   {"\n", nil, ""},
		"keeps the order":            {string(bundleOf(b, a)), bundleOf(b, a), ""},
		"passes over comments":       {"# old\n" + string(bundleOf(a)) + "# new\n" + string(bundleOf(b)), bundleOf(a, b), ""},
		"keeps what is good": {
			string(bundleOf(a)) + string(broken) + string(bundleOf(b)), bundleOf(a, b), "block 1"},
		"names a key by its type":    {string(key) + string(bundleOf(a)), bundleOf(a), `block 0: it is a "PRIVATE KEY"`},
		"refuses what follows":       {string(bundleOf(a)) + "garbage", bundleOf(a), "block 1: not PEM"},
		"refuses what is not PEM":    {"garbage", nil, "block 0: not PEM"},
		"refuses a cut off document": {string(bundleOf(a)[:100]), nil, "not PEM"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := certs.ParseBundle([]byte(tc.data))
			checkError(t, err, tc.err)
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows a key: %v", err)
			}
			if diff := cmp.Diff(string(tc.want), string(certs.EncodeBundle(got))); diff != "" {
				t.Errorf("certificates (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOldestFirst(t *testing.T) {
	a, b, old := issueCA(t, start, 365*day).Certificate, issueCA(t, start.Add(time.Hour), 365*day).Certificate, issueCA(t, time.Unix(0, 0), day).Certificate
	type list = []*x509.Certificate
	tests := map[string]struct{ given, want list }{
		"keeps one of equal ones":    {list{a, b, b, a}, list{a, b}},
		"sorts by age":               {list{b, a}, list{a, b}},
		"keeps one that has expired": {list{a, old}, list{old, a}},
		"makes nothing of nothing":   {nil, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := certs.OldestFirst(tc.given)
			if !bytes.Equal(certs.EncodeBundle(got), certs.EncodeBundle(tc.want)) {
				t.Errorf("got %d certificates, want %d, or in another order", len(got), len(tc.want))
			}
		})
	}
}

// checkError fails the test unless err contains want, or is nil if want is empty.
func checkError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("unexpected error: %v", err)
	case want != "" && err == nil:
		t.Errorf("no error, want one with %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("error %q, want one with %q", err, want)
	}
}
