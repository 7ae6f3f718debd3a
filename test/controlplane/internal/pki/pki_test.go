package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"slices"
	"testing"
)

func open(t *testing.T, dir string) *Authority {
	t.Helper()
	a, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func leaf(t *testing.T, pair Pair) *x509.Certificate {
	t.Helper()
	loaded, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	return loaded.Leaf
}

func TestServingCertificateIsTrustedForItsNames(t *testing.T) {
	a := open(t, t.TempDir())
	pair, err := a.Serving("serving", []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"localhost", "127.0.0.1"} {
		if _, err := leaf(t, pair).Verify(x509.VerifyOptions{Roots: a.Pool(), DNSName: name}); err != nil {
			t.Errorf("at %s: %v", name, err)
		}
	}
	if _, err := leaf(t, pair).Verify(x509.VerifyOptions{Roots: open(t, t.TempDir()).Pool()}); err == nil {
		t.Error("another authority's clients trust it")
	}
}

func TestClientCertificateNamesUserAndGroups(t *testing.T) {
	a := open(t, t.TempDir())
	pair, err := a.Client("admin", "jane", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	cert := leaf(t, pair)
	if cert.Subject.CommonName != "jane" || !slices.Equal(cert.Subject.Organization, []string{"system:masters"}) {
		t.Errorf("the subject is %s", cert.Subject)
	}
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: a.Pool(), KeyUsages: usages}); err != nil {
		t.Error(err)
	}
}

func TestAuthorityAndServiceAccountKeyAreKept(t *testing.T) {
	dir := t.TempDir()
	first := open(t, dir)
	path, err := first.ServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	second := open(t, dir)
	if !first.cert.Equal(second.cert) {
		t.Error("the authority was made anew")
	}
	if path, err = second.ServiceAccountKey(); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(path); err != nil || string(again) != string(key) {
		t.Errorf("the ServiceAccount key was made anew: %v", err)
	}
}

func TestBrokenAuthorityIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir)
	if err := os.WriteFile(a.CertFile(), []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("what the stand's data was signed with was thrown away")
	}
}
