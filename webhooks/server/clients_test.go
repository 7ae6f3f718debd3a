package server_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sidecarset/operator/webhooks/server"
)

// clientCA makes certificates of clients.
type clientCA struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newClientCA(t *testing.T) *clientCA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "clients"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &clientCA{certificate, key}
}

func (ca *clientCA) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.certificate)
	return pool
}

func (ca *clientCA) issue(t *testing.T, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// With CAs for clients, other clients are answered for conversions only.
func TestOnlyKnownClientsAreAnswered(t *testing.T) {
	ours, others := newClientCA(t), newClientCA(t)
	var pool atomic.Pointer[x509.CertPool]
	pool.Store(ours.pool())
	s := start(t, server.Options{ClientCAs: pool.Load}, map[string]server.Handler{"/x": answerOK})
	s.Register(server.GroupConversions, "/convert", answerOK)
	ask := func(path string, certificates ...tls.Certificate) int {
		client := s.client(t, func(transport *http.Transport) { transport.TLSClientConfig.Certificates = certificates })
		response, err := client.Post(s.url(path), "application/json", strings.NewReader("{}"))
		if err != nil {
			return 0
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	known := ours.issue(t, x509.ExtKeyUsageClientAuth)
	for name, tc := range map[string]struct {
		path         string
		certificates []tls.Certificate
		want         int
	}{
		"a client of the CA":                 {"/x", []tls.Certificate{known}, http.StatusOK},
		"no certificate":                     {"/x", nil, http.StatusUnauthorized},
		"another CA":                         {"/x", []tls.Certificate{others.issue(t, x509.ExtKeyUsageClientAuth)}, 0},
		"a certificate of a server":          {"/x", []tls.Certificate{ours.issue(t, x509.ExtKeyUsageServerAuth)}, 0},
		"a conversion without a certificate": {"/convert", nil, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ask(tc.path, tc.certificates...); got != tc.want {
				t.Errorf("status %d, want %d", got, tc.want)
			}
		})
	}
	pool.Store(others.pool())
	if got := ask("/x", known); got != 0 {
		t.Errorf("a client of a CA that was replaced got %d", got)
	}
}
