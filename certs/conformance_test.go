package certs_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/test/conformance"
)

// The same laws hold in every mode. Here the API server and cert-manager are stand-ins;
// test/chaos/certificates checks the laws against the real ones.
func TestConformance(t *testing.T) {
	modes := map[string]func(t *testing.T, m *conformance.Mode, dir string){
		"self":         selfMode,
		"cert-manager": certManagerMode,
		"files":        func(_ *testing.T, m *conformance.Mode, dir string) { m.Files(dir) },
	}
	for name, configure := range modes {
		t.Run(name, func(t *testing.T) {
			for law, test := range conformance.Tests {
				t.Run(law, func(t *testing.T) {
					dir := t.TempDir() // outside of the bubble, which it outlives
					synctest.Test(t, func(t *testing.T) {
						m := newMode(t)
						configure(t, m, dir)
						test(t, m)
					})
				})
			}
		})
	}
}

func TestConformanceOfSelfManaged(t *testing.T) {
	for law, test := range conformance.SelfTests {
		t.Run(law, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMode(t)
				selfMode(t, m, "")
				test(t, m)
			})
		})
	}
}

// newMode returns what all modes share.
func newMode(t *testing.T) *conformance.Mode {
	server := newAPIServer(t, manifests()...)
	opts := shortLived()
	opts.Overlap, opts.Patience = time.Hour, time.Minute
	return &conformance.Mode{
		Client: server, Options: opts, Host: host, Targets: targets(),
		Patience: 10 * time.Minute, Interval: 5 * time.Second, Lag: apiServerLag,
		Bundles: func(context.Context) (map[string]string, error) { return publishedBundles(t, server), nil },
		Tell: func(t *testing.T, clock *certs.ServerClock) client.WithWatch {
			return newReplica(t, server, withClock(clock), targets()...).client
		},
		Reset: func(t *testing.T) {
			c := &admissionregistrationv1.MutatingWebhookConfiguration{}
			if err := server.Get(t.Context(), client.ObjectKey{Name: "defaulting"}, c); err != nil {
				t.Fatal(err)
			}
			c.Webhooks[0].ClientConfig.CABundle = nil
			if err := server.Update(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		},
	}
}

// withClock are options of a replica whose clock the answers of API servers set.
func withClock(clock *certs.ServerClock) certs.Options {
	opts := shortLived()
	opts.ServerClock = clock
	return opts
}

func selfMode(_ *testing.T, m *conformance.Mode, _ string) {
	m.Renew = func(*testing.T) {} // by itself, every five minutes
	m.ChangeCA = func(t *testing.T) { annotateSecret(t, m.Client, certs.RotateAnnotation, "please") }
}

func certManagerMode(t *testing.T, m *conformance.Mode, _ string) {
	m.Options.Mode = certs.ModeCertManager
	m.Options.CALifetime, m.Options.LeafLifetime = 6*time.Hour, 2*time.Hour
	m.Empty = "Issuer system/sidecarset-selfsigned does not exist yet: the leader declares it"
	m.MayHoldKey = "sidecarset-serving"
	signer := &signer{client: m.Client}
	signer.start(t)
	m.Renew = func(t *testing.T) { signer.renew(t, "sidecarset-serving") }
	m.ChangeCA = func(t *testing.T) {
		signer.renew(t, "sidecarset-ca")
		signer.renew(t, "sidecarset-serving")
	}
}
