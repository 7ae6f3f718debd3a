package certs_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ofTheProcess is the invariant whose test changes the working directory and the environment, so no
// other test can run at the same time.
const ofTheProcess = "a key is in no log, no file and no other Secret"

// invariants hold in every mode; the name of each is a claim.
var invariants = map[string]func(*testing.T, *mode){
	"nothing is served before there is a certificate": nothingBefore,
	"a replica is ready when its CA is published":     readyWhenPublished,
	ofTheProcess:                              keyStaysInside,
	"a renewal fails no handshake":            renewal,
	"a change of CA fails no handshake":       changeOfCA,
	"a bundle that a user removes comes back": bundleComesBack,
}

func nothingBefore(t *testing.T, m *mode) {
	r := newReplica(t, m)
	if r.leaf() != nil || r.Source.CAs() != nil {
		t.Error("there is a certificate or a bundle before anything was read")
	}
	if err := r.Source.Ready(); err == nil || !strings.Contains(err.Error(), "has not been read yet") {
		t.Errorf("ready: %v; want an error that says what has not been read yet", err)
	}
	if m.empty == "" {
		return // replicas make the certificate themselves
	}
	r.start(t)
	m.await(t, "an error that says what is missing", func() error {
		err := r.Source.Ready()
		if err == nil || !strings.Contains(err.Error(), m.empty) {
			return fmt.Errorf("ready: %w; want an error with %q", err, m.empty)
		}
		return nil
	})
	if err := r.handshake(t.Context(), string(bundleOf(issueCA(t, time.Now(), time.Hour).Certificate))); err == nil {
		t.Error("a handshake succeeded without a certificate")
	}
}

func readyWhenPublished(t *testing.T, m *mode) {
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
	for place, bundle := range m.bundles(t) {
		for i, r := range replicas {
			if err := r.handshake(t.Context(), bundle.pem); err != nil {
				t.Errorf("calling replica %d because of %s: %v", i, place, err)
			}
		}
	}
}

func keyStaysInside(t *testing.T, m *mode) {
	empty := t.TempDir()
	t.Setenv("TMPDIR", empty)
	t.Chdir(empty)
	replicas := m.begin(t, 2)
	replicas[0].lead(t)
	m.awaitReady(t, replicas...)
	first := replicas[1].leaf()
	m.changeCA(t)
	m.awaitOther(t, first, replicas[1])

	if files, err := os.ReadDir(empty); err != nil || len(files) > 0 {
		t.Errorf("files were made: %v, %v", files, err)
	}
	var secrets corev1.SecretList
	if err := m.List(t.Context(), &secrets); err != nil {
		t.Fatal(err)
	}
	for i, r := range replicas {
		text := r.log.String()
		if !strings.Contains(text, "Serving a new certificate") {
			t.Error("the log was not kept, so this shows nothing")
		}
		number, err := r.leaf().PrivateKey.(*ecdsa.PrivateKey).Bytes()
		_, key := encode(t, r.leaf())
		if err != nil || !holds(key, number) {
			t.Fatalf("the key of the leaf is not found in its own PEM, so this shows nothing: %v", err)
		}
		block, _ := pem.Decode(key)
		if strings.Contains(text, "PRIVATE KEY") || strings.Contains(text, base64.StdEncoding.EncodeToString(block.Bytes)) {
			t.Errorf("replica %d logs a key", i)
		}
		for _, secret := range secrets.Items {
			for name, value := range secret.Data {
				if holds(value, number) {
					t.Errorf("%s of Secret %s holds the key of replica %d", name, secret.Name, i)
				}
			}
		}
	}
}

func renewal(t *testing.T, m *mode) {
	if m.renew == nil {
		t.Skip("SKIP: a leaf of this mode lives as long as its CA")
	}
	replicas := m.begin(t, 2)
	replicas[0].lead(t)
	m.awaitReady(t, replicas...)
	callers := m.call(t, replicas...)
	for range 3 {
		before := [2]*tls.Certificate{replicas[0].leaf(), replicas[1].leaf()}
		m.renew(t)
		for i, r := range replicas {
			m.awaitOther(t, before[i], r)
		}
	}
	callers.end(t)
}

func changeOfCA(t *testing.T, m *mode) {
	replicas := m.begin(t, 2)
	replicas[0].lead(t)
	m.awaitReady(t, replicas...)
	callers := m.call(t, replicas...)
	m.change(t, replicas)
	callers.end(t)
	wantReady(t, replicas)
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

func bundleComesBack(t *testing.T, m *mode) {
	replicas := m.begin(t, 1)
	replicas[0].lead(t)
	m.awaitReady(t, replicas...)
	m.reset(t, nil)
	m.awaitPublished(t, replicas[0])
	m.awaitReady(t, replicas...)
}

// begin starts replicas. None of them leads.
func (m *mode) begin(t *testing.T, count int) []*replica {
	t.Helper()
	if m.provide != nil {
		m.provide(t)
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
func (m *mode) change(t *testing.T, replicas []*replica) {
	t.Helper()
	before := replicas[0].leaf()
	m.changeCA(t)
	for _, r := range replicas {
		m.awaitLeaf(t, "a leaf of another CA", r, func(now *tls.Certificate) bool {
			return !bytes.Equal(now.Leaf.AuthorityKeyId, before.Leaf.AuthorityKeyId)
		})
	}
}

// awaitOther waits until the replica serves another leaf.
func (m *mode) awaitOther(t *testing.T, before *tls.Certificate, r *replica) {
	t.Helper()
	m.awaitLeaf(t, "another leaf", r, func(now *tls.Certificate) bool { return !now.Leaf.Equal(before.Leaf) })
}

// holds says whether a PEM document in data has the private number of a key.
func holds(data, number []byte) bool {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if bytes.Contains(block.Bytes, number) {
			return true
		}
	}
	return false
}
