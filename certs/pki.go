package certs

import (
	"bytes"
	"cmp"
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
	"net"
	"slices"
	"strings"
	"time"
)

// KeyPair is a certificate and the private key that belongs to it.
type KeyPair struct {
	Certificate *x509.Certificate
	Key         crypto.Signer
}

// Subject has the names for which a serving certificate is valid.
type Subject struct {
	DNSNames []string
	IPs      []net.IP
}

// String lists the names.
func (s Subject) String() string {
	return strings.Join(s.hosts(), ", ")
}

// hosts returns the names as API servers compare them.
func (s Subject) hosts() []string {
	hosts := slices.Clone(s.DNSNames)
	for _, ip := range s.IPs {
		hosts = append(hosts, ip.String())
	}
	return hosts
}

// ServiceName returns the name under which API servers call a Service.
func ServiceName(service, namespace string) string {
	return service + "." + namespace + ".svc"
}

// IssueCA makes a self-signed ECDSA P-256 CA that is valid from a day before now until now+lifetime. Its subject contains the time
// of issue and a number, so that two CAs in one bundle can be told apart.
func IssueCA(name string, now time.Time, lifetime time.Duration) (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("generating CA key: %w", err)
	}
	number := make([]byte, 4)
	_, _ = rand.Read(number) // never fails
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: fmt.Sprintf("%s@%d-%x", name, now.Unix(), number)},
		NotBefore:             now.Add(-early),
		NotAfter:              now.Add(lifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true, // signs leaves, never another CA
	}
	cert, err := sign(template, template, key.Public(), key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("signing CA certificate: %w", err)
	}
	return KeyPair{Certificate: cert, Key: key}, nil
}

// IssueLeaf makes a serving certificate with a new ECDSA P-256 key. It begins and ends with the CA.
func (ca KeyPair) IssueLeaf(subject Subject) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating serving key: %w", err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "sidecarset-operator"},
		NotBefore:             ca.Certificate.NotBefore,
		NotAfter:              ca.Certificate.NotAfter,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		DNSNames:              subject.DNSNames,
		IPAddresses:           subject.IPs,
	}
	cert, err := sign(template, ca.Certificate, key.Public(), ca.Key)
	if err != nil {
		return nil, fmt.Errorf("signing serving certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key) // a nil serial number asks for a random one
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Verify checks a serving certificate as an API server does that has this bundle and calls host, a DNS name or an IP address. If
// host is empty, it is not compared. cert.Leaf must be set.
func Verify(cert *tls.Certificate, bundle []byte, host string, now time.Time) error {
	if len(bundle) == 0 {
		return errors.New("the CA bundle is empty")
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return errors.New("the CA bundle holds no certificate")
	}
	intermediates := x509.NewCertPool()
	for _, der := range cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			intermediates.AddCert(c)
		}
	}
	_, err := cert.Leaf.Verify(x509.VerifyOptions{
		DNSName:       host,
		Roots:         roots,
		Intermediates: intermediates,
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}

// withinLife returns the time in a certificate's life that is closest to now.
func withinLife(cert *x509.Certificate, now time.Time) time.Time {
	now = now.Round(0)
	if now.Before(cert.NotBefore) {
		return cert.NotBefore
	}
	if now.After(cert.NotAfter) {
		return cert.NotAfter
	}
	return now
}

// ParseBundle returns the certificates of a PEM bundle in order. It leaves out what does not parse and names it in the error, so
// that a caller can use the rest.
func ParseBundle(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	var errs []error
	for i := 0; ; i++ {
		block, rest := pem.Decode(data)
		if block == nil {
			if len(bytes.TrimSpace(data)) > 0 {
				errs = append(errs, fmt.Errorf("parsing PEM block %d: not PEM", i))
			}
			return certs, errors.Join(errs...)
		}
		data = rest
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case block.Type != "CERTIFICATE": // the content may be a key: say no more than the type
			errs = append(errs, fmt.Errorf("parsing PEM block %d: it is a %q, not a certificate", i, block.Type))
		case err != nil:
			errs = append(errs, fmt.Errorf("parsing PEM block %d: %w", i, err))
		default:
			certs = append(certs, cert)
		}
	}
}

// EncodeBundle renders certificates as PEM. Equal certificates in equal order give equal bytes.
func EncodeBundle(certs []*x509.Certificate) []byte {
	var out bytes.Buffer
	for _, cert := range certs {
		out.Write(encodeCertificate(cert))
	}
	return out.Bytes()
}

// oldestFirst sorts certificates by age, so that a change of the signing CA does not change what is published, and leaves out
// repetitions. Expired certificates stay: clients judge them by their own clocks.
func oldestFirst(bundle []*x509.Certificate) []*x509.Certificate {
	slices.SortStableFunc(bundle, func(a, b *x509.Certificate) int {
		return cmp.Or(a.NotBefore.Compare(b.NotBefore), bytes.Compare(a.Raw, b.Raw))
	})
	return slices.CompactFunc(bundle, (*x509.Certificate).Equal)
}

func encodeCertificate(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}
