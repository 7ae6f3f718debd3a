package conformance

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/certs"
)

// SelfTests are the laws of mode self: whatever happens to the CA Secret, and whatever the
// clocks show, calls succeed and Events inform the administrator.
var SelfTests = map[string]func(*testing.T, *Mode){
	"a CA Secret that is deleted comes back":         deletedSecret,
	"a CA Secret that is corrupted is repaired":      corruptedSecret,
	"a CA Secret that never was usable is replaced":  unusableSecret,
	"a CA that another program writes is followed":   foreignCA,
	"clocks that are ten minutes apart cost nothing": skewedClocks,
	"a clock that is wrong costs nothing":            wrongClock,
}

// damage calls happen with the CA Secret while API servers call replicas, and waits until
// recovered returns nil.
func damage(t *testing.T, m *Mode, happen func(secret *corev1.Secret) error, recovered func(before *corev1.Secret, replicas []*replica) error) {
	replicas := m.begin(t, 2)
	replicas[0].lead(t)
	m.awaitReady(t, replicas...)
	m.await(t, "the leader's first look", func() error { // the leader compares later states with what it finds then
		if !strings.Contains(replicas[0].log.String(), "Looking after the CA from now on") {
			return errors.New("it has not looked")
		}
		return nil
	})
	callers := m.call(t, replicas...)
	before := m.secret(t)
	if err := happen(before.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	m.await(t, "recovery", func() error { return recovered(before, replicas) })
	callers.end(t)
	wantReady(t, replicas)
}

func deletedSecret(t *testing.T, m *Mode) {
	damage(t, m, func(secret *corev1.Secret) error {
		return m.Client.Delete(t.Context(), secret)
	}, func(before *corev1.Secret, replicas []*replica) error {
		if err := m.sameCA(t.Context(), before); err != nil || before.UID == "" {
			return err // a stand-in gives no UIDs, and without them the leader does not notice
		}
		return replicas[0].events.has(certs.ReasonCARestored)
	})
}

func corruptedSecret(t *testing.T, m *Mode) {
	damage(t, m, func(secret *corev1.Secret) error {
		secret.Data[corev1.TLSPrivateKeyKey] = []byte("garbage")
		return m.Client.Update(t.Context(), secret)
	}, func(before *corev1.Secret, replicas []*replica) error {
		return errors.Join(m.sameCA(t.Context(), before), replicas[0].events.has(certs.ReasonCAReplaced))
	})
}

func foreignCA(t *testing.T, m *Mode) {
	foreign, err := certs.NewAuthority(time.Now(), certs.Policy{CALifetime: m.Options.CALifetime, LeafLifetime: m.Options.LeafLifetime})
	if err != nil {
		t.Fatal(err)
	}
	damage(t, m, func(secret *corev1.Secret) error {
		secret.Data = nil
		if err := foreign.Encode(secret); err != nil {
			return err
		}
		return m.Client.Update(t.Context(), secret)
	}, func(_ *corev1.Secret, replicas []*replica) error {
		for _, r := range replicas {
			if leaf := r.leaf().Leaf; !bytes.Equal(leaf.AuthorityKeyId, foreign.Signing.Certificate.SubjectKeyId) {
				return errors.New("a replica serves a leaf of the CA from before")
			}
		}
		return replicas[0].events.has(certs.ReasonForeignCA)
	})
}

func unusableSecret(t *testing.T, m *Mode) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: m.Options.Namespace, Name: m.Options.SecretName}, Type: corev1.SecretTypeTLS}
	secret.Data = map[string][]byte{corev1.TLSCertKey: []byte("garbage"), corev1.TLSPrivateKeyKey: []byte("garbage")}
	if err := m.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	replicas := m.begin(t, 2)
	m.await(t, "a reason", func() error {
		err := replicas[0].Readiness.Ready(t.Context())
		if err == nil || !strings.Contains(err.Error(), "tls.crt and tls.key are not a certificate and its key") || !strings.Contains(err.Error(), "the leader replaces it") {
			return fmt.Errorf("ready: %w", err)
		}
		return nil
	})
	replicas[0].lead(t)
	m.awaitReady(t, replicas...)
	if err := replicas[0].events.has(certs.ReasonCAReplaced); err != nil {
		t.Error(err)
	}
}

// skewedClocks runs one replica whose clock is five minutes ahead of API servers, and one whose
// clock is five minutes behind.
func skewedClocks(t *testing.T, m *Mode) {
	m.Options.CALifetime, m.Options.LeafLifetime = 6*time.Hour, time.Hour
	replicas := make([]*replica, 0, 2)
	for _, by := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
		m.Options.Clock = NewClock(by)
		r := newReplica(t, m)
		r.start(t)
		replicas = append(replicas, r)
	}
	replicas[0].lead(t)
	m.awaitReady(t, replicas...)
	callers := m.call(t, replicas...)
	m.change(t, replicas)
	replicas[0].resign()
	replicas[1].lead(t) // the clock of this replica is behind
	m.change(t, replicas)
	callers.end(t)
}

// wrongClock sets the leader's clock ahead by more than the CA is valid, and then right. While
// the clock is wrong, the leader publishes a removed bundle again. This wrong time of
// publication must not prevent it from publishing the next bundle.
func wrongClock(t *testing.T, m *Mode) {
	clock := NewClock(0)
	m.Options.Clock, m.Options.ServerClock = clock, certs.NewServerClock(clock)
	leader := newReplica(t, m)
	m.Options.Clock, m.Options.ServerClock = nil, certs.NewServerClock(nil)
	replicas := []*replica{leader, newReplica(t, m)}
	for _, r := range replicas {
		r.start(t)
	}
	leader.lead(t)
	m.awaitReady(t, replicas...)
	before := m.secret(t)

	clock.Set(m.Options.CALifetime + 24*time.Hour)
	m.takeAway(t, leader)
	callers := m.call(t, replicas...)
	for range 2 { // leaves are renewed by the API servers' time
		last := leader.leaf()
		m.await(t, "a renewal", func() error {
			if leader.leaf() == last {
				return errors.New("the leader serves the same leaf")
			}
			return nil
		})
	}
	if err := leader.events.has(certs.ReasonClockDiffers); err != nil {
		t.Error(err)
	}
	if now := m.secret(t); now.ResourceVersion != before.ResourceVersion {
		t.Error("the Secret was written")
	}
	clock.Set(0)
	m.change(t, replicas)
	callers.end(t)
	wantReady(t, replicas)
}

// Clock is a clock that can be set. Timers of the process do not change with it.
type Clock struct {
	clock.RealClock
	ahead atomic.Int64
}

// NewClock returns a clock that is ahead of the real one.
func NewClock(ahead time.Duration) *Clock {
	c := &Clock{}
	c.Set(ahead)
	return c
}

// Now returns the time that the clock shows.
func (c *Clock) Now() time.Time { return c.RealClock.Now().Round(0).Add(time.Duration(c.ahead.Load())) }

// Since is the time that has passed by this clock.
func (c *Clock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Set sets the clock ahead of the real one.
func (c *Clock) Set(ahead time.Duration) { c.ahead.Store(int64(ahead)) }

// ConstrainedCA returns a CA that may sign only for names of example.org, as the CA of a company
// may be restricted to the company's names.
func ConstrainedCA(t *testing.T, now time.Time) certs.KeyPair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "company"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(365 * 24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, PermittedDNSDomains: []string{"example.org"}, PermittedDNSDomainsCritical: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certs.KeyPair{Certificate: cert, Key: key}
}

func (m *Mode) secret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := m.Client.Get(t.Context(), client.ObjectKey{Namespace: m.Options.Namespace, Name: m.Options.SecretName}, secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

// sameCA checks that the Secret has the same CA as before.
func (m *Mode) sameCA(ctx context.Context, before *corev1.Secret) error {
	now := &corev1.Secret{}
	if err := m.Client.Get(ctx, client.ObjectKeyFromObject(before), now); err != nil {
		return err
	}
	for _, key := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey, "ca.crt"} {
		if !bytes.Equal(now.Data[key], before.Data[key]) {
			return fmt.Errorf("%s is not what it was", key)
		}
	}
	return nil
}

// recorder keeps the reasons of events.
type recorder struct {
	mu      sync.Mutex
	reasons []string
}

// Eventf records an event.
func (r *recorder) Eventf(_, _ runtime.Object, _, reason, _, _ string, _ ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reasons = append(r.reasons, reason)
}

func (r *recorder) has(reason string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.reasons, reason) {
		return fmt.Errorf("there is no event %s but %q", reason, r.reasons)
	}
	return nil
}
