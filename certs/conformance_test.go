package certs_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/test/conformance"
)

// The same laws hold in every mode. Here the API server is a stand-in and so is cert-manager; test/integration/certificates holds them
// against the real ones.
func TestConformance(t *testing.T) {
	modes := map[string]func(*testing.T, *conformance.Mode){
		"self":         selfMode,
		"cert-manager": certManagerMode,
		"files":        filesMode,
	}
	for name, configure := range modes {
		t.Run(name, func(t *testing.T) {
			for law, test := range conformance.Tests {
				t.Run(law, func(t *testing.T) {
					dir := t.TempDir() // outside of the bubble, which it outlives
					synctest.Test(t, func(t *testing.T) {
						m := newMode(t)
						m.Options.Directory = dir
						configure(t, m)
						test(t, m)
					})
				})
			}
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

func selfMode(_ *testing.T, m *conformance.Mode) {
	m.Renew = func(*testing.T) {} // by itself, every five minutes
	m.ChangeCA = func(t *testing.T) { annotateSecret(t, m.Client, certs.RotateAnnotation, "please") }
}

// filesMode has somebody mount files as a kubelet does.
func filesMode(t *testing.T, m *conformance.Mode) {
	m.Options.Mode = certs.ModeFiles
	m.Empty = "no such file or directory"
	volume := &volume{dir: m.Options.Directory}
	var ca certs.KeyPair
	write := func(t *testing.T) { volume.write(t, pairFiles(t, ca)) }
	m.Provide = func(t *testing.T) {
		ca = issueCA(t, time.Now(), 365*day)
		write(t)
	}
	m.Renew = write
	m.ChangeCA = m.Provide
}

func certManagerMode(t *testing.T, m *conformance.Mode) {
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

// volume is a directory as a kubelet mounts it: links to a directory that changes as a whole.
type volume struct {
	dir      string
	versions int
}

func (v *volume) write(t *testing.T, files map[string][]byte) {
	t.Helper()
	v.versions++
	version := "..version-" + string(rune('a'+v.versions))
	if err := os.Mkdir(filepath.Join(v.dir, version), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(v.dir, version, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(v.dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	link := filepath.Join(v.dir, "..data")
	if err := os.Symlink(version, link+"_tmp"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+"_tmp", link); err != nil {
		t.Fatal(err)
	}
}

// pairFiles returns a new key pair of the CA, as files.
func pairFiles(t *testing.T, ca certs.KeyPair) map[string][]byte {
	t.Helper()
	cert, key := encode(t, issueLeaf(t, ca, time.Now(), 30*day))
	return map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": bundleOf(ca)}
}
