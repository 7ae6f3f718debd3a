package conformance

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sidecarset/operator/certs"
)

// OfTheProcess is the law whose test changes the working directory and the environment, so no
// other test can run at the same time.
const OfTheProcess = "a key is in no log, no file and no other Secret"

// Tests are the laws; the name of each is a claim.
var Tests = map[string]func(*testing.T, *Mode){
	"nothing is served before there is a certificate": nothingBefore,
	"a replica is ready when its CA is published":     readyWhenPublished,
	OfTheProcess:                                         keyStaysInside,
	"a renewal fails no handshake":                       renewal,
	"a change of CA fails no handshake":                  changeOfCA,
	"a leader that dies in a change of CA costs nothing": changeOfLeader,
	"a bundle that a user removes comes back":            bundleComesBack,
}

func nothingBefore(t *testing.T, m *Mode) {
	r := newReplica(t, m)
	if r.leaf() != nil || r.Source.CAs() != nil {
		t.Error("there is a certificate or a bundle before anything was read")
	}
	if err := r.Source.Ready(); err == nil || !strings.Contains(err.Error(), "has not been read yet") {
		t.Errorf("ready: %v; want an error that says what has not been read yet", err)
	}
	if m.Empty == "" {
		return // replicas make the certificate themselves
	}
	r.start(t)
	m.await(t, "an error that says what is missing", func() error {
		err := r.Source.Ready()
		if err == nil || !strings.Contains(err.Error(), m.Empty) {
			return fmt.Errorf("ready: %w; want an error with %q", err, m.Empty)
		}
		return nil
	})
	if err := r.handshake(t.Context(), string(selfSigned(t, m.Host))); err == nil {
		t.Error("a handshake succeeded without a certificate")
	}
}

func readyWhenPublished(t *testing.T, m *Mode) {
	replicas := m.begin(t, 2)
	for _, r := range replicas {
		r.published.Store(false)
	}
	replicas[0].lead(t)
	for _, r := range replicas {
		m.await(t, "a certificate", func() error {
			_, err := r.Source.GetCertificate(&tls.ClientHelloInfo{})
			return err
		})
		m.await(t, "a reason", func() error {
			err := r.Source.Ready()
			if err == nil || !strings.Contains(err.Error(), "its caBundle is empty until the leader writes it") {
				return fmt.Errorf("ready: %w", err)
			}
			return nil
		})
	}
	replicas[0].published.Store(true)
	m.awaitReady(t, replicas...)
	m.awaitPublished(t, replicas...) // a replica is ready once the first client accepts its leaf
	bundles, err := m.Bundles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for place, bundle := range bundles {
		for i, r := range replicas {
			if err := r.handshake(t.Context(), bundle.PEM); err != nil {
				t.Errorf("calling replica %d because of %s: %v", i, place, err)
			}
		}
	}
}

func keyStaysInside(t *testing.T, m *Mode) {
	empty := t.TempDir()
	t.Setenv("TMPDIR", empty)
	t.Chdir(empty)
	replicas := m.begin(t, 2)
	replicas[0].lead(t)
	m.awaitReady(t, replicas...)
	first := replicas[1].leaf()
	m.ChangeCA(t)
	m.awaitOther(t, first, replicas[1])

	if files, err := os.ReadDir(empty); err != nil || len(files) > 0 {
		t.Errorf("files were made: %v, %v", files, err)
	}
	var secrets corev1.SecretList
	if err := m.Client.List(t.Context(), &secrets); err != nil {
		t.Fatal(err)
	}
	for i, r := range replicas {
		text := r.log.String()
		if !strings.Contains(text, "Serving a new certificate") {
			t.Error("the log was not kept, so this shows nothing")
		}
		key := keyOf(t, r.leaf())
		if strings.Contains(text, "PRIVATE KEY") || strings.Contains(text, base64.StdEncoding.EncodeToString(key)) {
			t.Errorf("replica %d logs a key", i)
		}
		for _, secret := range secrets.Items {
			for name, value := range secret.Data {
				if secret.Name != m.MayHoldKey && holds(t, value, r.leaf()) {
					t.Errorf("%s of Secret %s holds the key of replica %d", name, secret.Name, i)
				}
			}
		}
	}
}

func renewal(t *testing.T, m *Mode) {
	if m.Renew == nil {
		t.Skip("SKIP: a leaf of this mode lives as long as its CA")
	}
	replicas := m.begin(t, 2)
	replicas[0].lead(t)
	m.awaitReady(t, replicas...)
	callers := m.call(t, replicas...)
	for range 3 {
		before := [2]*tls.Certificate{replicas[0].leaf(), replicas[1].leaf()}
		m.Renew(t)
		for i, r := range replicas {
			m.awaitOther(t, before[i], r)
		}
	}
	callers.end(t)
}

func changeOfCA(t *testing.T, m *Mode) {
	replicas := m.begin(t, 2)
	replicas[0].lead(t)
	m.awaitReady(t, replicas...)
	callers := m.call(t, replicas...)
	m.change(t, replicas)
	callers.end(t)
	wantReady(t, replicas)
}

// wantError returns an error unless err has that text.
func wantError(err error, text string) error {
	if err == nil || !strings.Contains(err.Error(), text) {
		return fmt.Errorf("the error is %w; want one with %q", err, text)
	}
	return nil
}

// wantReady fails the test if a replica is not ready now.
func wantReady(t *testing.T, replicas []*replica) {
	t.Helper()
	for i, r := range replicas {
		if err := r.Source.Ready(); err != nil {
			t.Errorf("replica %d is not ready: %v", i, err)
		}
	}
}

func changeOfLeader(t *testing.T, m *Mode) {
	replicas := m.begin(t, 2)
	replicas[0].lead(t)
	m.awaitReady(t, replicas...)
	callers := m.call(t, replicas...)
	// The change is published, and the leader ends before any replica follows the change.
	before := replicas[0].leaf()
	m.ChangeCA(t)
	m.await(t, "a published change", func() error {
		bundles, err := m.Bundles(t.Context())
		for _, bundle := range bundles {
			if cas, _ := certs.ParseBundle([]byte(bundle.PEM)); len(cas) < 2 {
				err = errors.Join(err, errors.New("one CA only"))
			}
		}
		return err
	})
	replicas[0].resign()
	heir := newReplica(t, m) // the new leader remembers nothing
	heir.start(t)
	heir.lead(t)
	for _, r := range replicas {
		m.awaitOtherCA(t, before, r)
	}
	callers.end(t)
}

func bundleComesBack(t *testing.T, m *Mode) {
	replicas := m.begin(t, 1)
	replicas[0].lead(t)
	m.awaitReady(t, replicas...)
	m.takeAway(t, replicas[0])
	m.awaitReady(t, replicas...)
}

// takeAway removes the bundle from one place, and waits until the leader has published its own
// bundle everywhere.
func (m *Mode) takeAway(t *testing.T, leader *replica) {
	t.Helper()
	m.Reset(t, nil)
	m.awaitPublished(t, leader)
}

// begin starts replicas. None of them leads.
func (m *Mode) begin(t *testing.T, count int) []*replica {
	t.Helper()
	if m.Provide != nil {
		m.Provide(t)
	}
	replicas := make([]*replica, 0, count)
	for range count {
		r := newReplica(t, m)
		r.start(t)
		replicas = append(replicas, r)
	}
	return replicas
}

// change changes the CA, and waits until all replicas serve leaves of the new one.
func (m *Mode) change(t *testing.T, replicas []*replica) {
	t.Helper()
	before := replicas[0].leaf()
	m.ChangeCA(t)
	for _, r := range replicas {
		m.awaitOtherCA(t, before, r)
	}
}

// awaitOther waits until the replica serves another leaf.
func (m *Mode) awaitOther(t *testing.T, before *tls.Certificate, r *replica) {
	t.Helper()
	m.await(t, "another leaf", func() error {
		if now := r.leaf(); now == nil || bytes.Equal(now.Certificate[0], before.Certificate[0]) {
			return errors.New("it is the same")
		}
		return nil
	})
}

// awaitOtherCA waits until the replica serves a leaf that another key signed.
func (m *Mode) awaitOtherCA(t *testing.T, before *tls.Certificate, r *replica) {
	t.Helper()
	m.await(t, "a leaf of another CA", func() error {
		if now := r.leaf(); now == nil || bytes.Equal(now.Leaf.AuthorityKeyId, before.Leaf.AuthorityKeyId) {
			return errors.New("the CA is the same")
		}
		return nil
	})
}

// keyOf returns the private key in PKCS #8.
func keyOf(t *testing.T, cert *tls.Certificate) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// holds says whether a PEM document in data is the key, in PKCS #8 or SEC 1.
func holds(t *testing.T, data []byte, cert *tls.Certificate) bool {
	t.Helper()
	want := [][]byte{keyOf(t, cert)}
	if key, ok := cert.PrivateKey.(*ecdsa.PrivateKey); ok {
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, der)
	}
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return false
		}
		if slices.ContainsFunc(want, func(der []byte) bool { return bytes.Equal(der, block.Bytes) }) {
			return true
		}
	}
}

// selfSigned returns some certificate.
func selfSigned(t *testing.T, host string) []byte {
	t.Helper()
	ca, err := certs.IssueCA(host, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return certs.EncodeBundle([]*x509.Certificate{ca.Certificate})
}
