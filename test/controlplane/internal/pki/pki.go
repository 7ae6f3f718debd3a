// Package pki makes the certificates and keys of one stand. The authority and the ServiceAccount
// key remain as long as the data directory, so a stand that is started again trusts the
// certificates and tokens that it issued before. All other certificates are issued at each start.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
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
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// Pair names the two files of one certificate.
type Pair struct {
	CertFile, KeyFile string
}

// Open reads the authority in dir, or makes one.
func Open(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the certificate directory: %w", err)
	}
	a := &Authority{dir: dir}
	pair, err := tls.LoadX509KeyPair(a.CertFile(), a.KeyFile())
	switch {
	case err == nil:
		a.cert, a.key = pair.Leaf, pair.PrivateKey.(crypto.Signer)
		return a, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("reading the certificate authority in %s: %w", dir, err)
	}
	return a, a.create()
}

// CertFile is the file with the authority's certificate. Clients trust it, and API servers check
// clients' certificates with it.
func (a *Authority) CertFile() string { return filepath.Join(a.dir, "ca.crt") }

// KeyFile is the authority's key, for the controller-manager's signers.
func (a *Authority) KeyFile() string { return filepath.Join(a.dir, "ca.key") }

// Pool returns a pool that trusts this authority only.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func (a *Authority) create() error {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "stand"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	var err error
	a.cert, a.key, err = a.issue("ca", template)
	return err
}

// Serving issues a certificate for servers at these names and addresses.
func (a *Authority) Serving(name string, dnsNames []string, ips []net.IP) (Pair, error) {
	return a.leaf(name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		DNSNames:    dnsNames,
		IPAddresses: ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// Client issues a certificate that the API server accepts as this user.
func (a *Authority) Client(name, user string, groups ...string) (Pair, error) {
	return a.leaf(name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *Authority) leaf(name string, template *x509.Certificate) (Pair, error) {
	template.KeyUsage = x509.KeyUsageDigitalSignature
	_, _, err := a.issue(name, template)
	return a.pair(name), err
}

func (a *Authority) pair(name string) Pair {
	return Pair{filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")}
}

// issue makes a key and a certificate, and writes both. The authority signs the certificate; the
// certificate of the authority itself is signed with its own key.
func (a *Authority) issue(name string, template *x509.Certificate) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	template.SerialNumber = serial
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
	files := a.pair(name)
	if err := errors.Join(writePEM(files.CertFile, "CERTIFICATE", der), writeKey(files.KeyFile, key)); err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

// ServiceAccountKey returns the file with the key that signs ServiceAccount
// tokens, and makes it if there is none. API servers read the public half from the
// same file.
func (a *Authority) ServiceAccountKey() (string, error) {
	path := filepath.Join(a.dir, "service-accounts.key")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	return path, writeKey(path, key)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
