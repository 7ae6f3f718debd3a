// Package pki makes the certificates and keys of one stand.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime is longer than any stand runs, because nothing here rotates.
const lifetime = 10 * 365 * 24 * time.Hour

// Authority signs the certificates of one stand and keeps them in one
// directory. It is used from one goroutine.
type Authority struct {
	Pair
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// Pair names the two files of one certificate.
type Pair struct {
	CertFile, KeyFile string
}

// New makes an authority, with its files in dir.
func New(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the certificate directory: %w", err)
	}
	a := &Authority{dir: dir}
	a.Pair = a.pair("ca")
	var err error
	a.cert, a.key, err = a.issue("ca", &x509.Certificate{
		Subject:               pkix.Name{CommonName: "stand"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	return a, err
}

// Pool returns a pool that trusts this authority only.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Serving issues a certificate for servers at these names and addresses.
func (a *Authority) Serving(name string, dnsNames []string, ips []net.IP) (Pair, error) {
	_, _, err := a.issue(name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		DNSNames:    dnsNames,
		IPAddresses: ips,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return a.pair(name), err
}

// Client issues a certificate that the API server accepts as this user.
func (a *Authority) Client(name, user string, groups ...string) (Pair, error) {
	_, _, err := a.issue(name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return a.pair(name), err
}

func (a *Authority) pair(name string) Pair {
	return Pair{filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")}
}

// issue makes a key and a certificate, and writes both. The authority signs the certificate; the
// certificate of the authority itself is signed with its own key.
func (a *Authority) issue(name string, template *x509.Certificate) (*x509.Certificate, crypto.Signer, error) {
	key, err := newKey(a.pair(name).KeyFile)
	if err != nil {
		return nil, nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, nil, err
	}
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(lifetime)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("signing certificate %q: %w", name, err)
	}
	if err := writePEM(a.pair(name).CertFile, "CERTIFICATE", der); err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

// ServiceAccountKey makes the key that signs ServiceAccount tokens. API servers read the public half
// from the same file.
func (a *Authority) ServiceAccountKey() (path string, err error) {
	path = filepath.Join(a.dir, "service-accounts.key")
	_, err = newKey(path)
	return path, err
}

func newKey(path string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
