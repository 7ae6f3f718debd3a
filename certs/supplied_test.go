package certs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/sidecarset/operator/certs"
)

// newFiles returns a Source of the directory, with no place to publish to.
func newFiles(t *testing.T, dir string, clk clock.PassiveClock) certs.Source {
	t.Helper()
	opts := certs.Options{Mode: certs.ModeFiles, Directory: dir, Subject: certs.Subject{DNSNames: []string{host}}, Clock: clk}
	serving, err := certs.Assemble(nil, host, opts)
	if err != nil {
		t.Fatal(err)
	}
	return serving.Source
}

func writeFiles(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// leafFiles returns a key pair of the CA, issued as of a time.
func leafFiles(t *testing.T, ca certs.KeyPair, at time.Time) map[string][]byte {
	t.Helper()
	cert, key := encode(t, issueLeaf(t, ca, at, 30*day))
	return map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": bundleOf(ca)}
}

// Material that is only half written is not served; the earlier material is.
func TestMismatchedCertificateFilesAreNotServed(t *testing.T) {
	ca, other := issueCA(t, start.Add(-60*day), 365*day), issueCA(t, start, 365*day)
	fresh, foreign := leafFiles(t, ca, start), leafFiles(t, other, start)
	tests := map[string]struct {
		files map[string][]byte
		want  string
	}{
		"the key is of another certificate": {map[string][]byte{"tls.key": fresh["tls.key"]}, "tls.crt and tls.key are not a certificate and its key"},
		"the certificate is cut off":        {map[string][]byte{"tls.crt": fresh["tls.crt"][:100]}, "tls.crt and tls.key are not a certificate and its key"},
		"the key is empty":                  {map[string][]byte{"tls.key": nil}, "tls.crt and tls.key are not a certificate and its key"},
		"the CA is cut off":                 {map[string][]byte{"ca.crt": append(bundleOf(ca), bundleOf(ca)[:100]...)}, "reading ca.crt: parsing PEM block 1: not PEM"},
		"the CA is empty":                   {map[string][]byte{"ca.crt": nil}, "reading ca.crt: there is no certificate"},
		"the CA is another one":             {map[string][]byte{"ca.crt": bundleOf(other)}, "checking tls.crt against ca.crt: x509: certificate signed by unknown authority"},
		"the pair is of another CA":         {map[string][]byte{"tls.crt": foreign["tls.crt"], "tls.key": foreign["tls.key"]}, "checking tls.crt against ca.crt"},
		"the pair has expired":              {leafFiles(t, ca, start.Add(-31*day)), "so the one from before is served"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			clk := clocktesting.NewFakeClock(start)
			source := newFiles(t, dir, clk)
			writeFiles(t, dir, leafFiles(t, ca, start))
			checkError(t, source.Refresh(t.Context()), "")
			before, err := source.GetCertificate(nil)
			checkError(t, err, "")

			writeFiles(t, dir, tc.files)
			err = source.Refresh(t.Context())
			checkError(t, err, tc.want)
			checkError(t, err, "directory "+dir)
			if now, err := source.GetCertificate(nil); err != nil || now != before {
				t.Errorf("another certificate is served: %v", err)
			}
			writeFiles(t, dir, leafFiles(t, ca, start))
			checkError(t, source.Refresh(t.Context()), "")
			if now, err := source.GetCertificate(nil); err != nil || now == before {
				t.Errorf("what was completed is not served: %v", err)
			}
		})
	}
}

func TestFilesForAnotherNameAreNotServed(t *testing.T) {
	dir := t.TempDir()
	ca := issueCA(t, start, 365*day)
	leaf, err := ca.IssueLeaf(certs.Subject{DNSNames: []string{"other.example.com"}}, start, day)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := encode(t, leaf)
	writeFiles(t, dir, map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": bundleOf(ca)})
	checkError(t, newFiles(t, dir, clocktesting.NewFakeClock(start)).Refresh(t.Context()), "not "+host)
}

// The clock of an issuer may be ahead of some API server's, and other issuers do not back-date.
func TestNewCertificateFilesAreServedAfterFiveMinutes(t *testing.T) {
	dir := t.TempDir()
	clk := clocktesting.NewFakeClock(start)
	source := newFiles(t, dir, clk)
	ca := issueCA(t, start, 365*day)
	writeFiles(t, dir, leafFiles(t, ca, start))
	checkError(t, source.Refresh(t.Context()), "")
	before, _ := source.GetCertificate(nil)

	writeFiles(t, dir, leafFiles(t, ca, start.Add(certs.Backdate))) // valid as of now
	for after, want := range map[time.Duration]bool{0: true, 4*time.Minute + 59*time.Second: true} {
		clk.SetTime(start.Add(after))
		checkError(t, source.Refresh(t.Context()), "")
		if now, _ := source.GetCertificate(nil); (now == before) != want {
			t.Errorf("after %s the old certificate is served: %v, want %v", after, !want, want)
		}
	}
	clk.SetTime(start.Add(5 * time.Minute))
	checkError(t, source.Refresh(t.Context()), "")
	if now, _ := source.GetCertificate(nil); now == before {
		t.Error("the old certificate is served when every clock accepts the new one")
	}
}

// A CA that is no longer supplied stays published for a while, and not for ever.
func TestFormerCALeavesTheBundle(t *testing.T) {
	dir := t.TempDir() // outside of the bubble, which it outlives
	synctest.Test(t, func(t *testing.T) { formerCALeavesTheBundle(t, dir) })
}

func formerCALeavesTheBundle(t *testing.T, dir string) {
	start := time.Now()
	source := newFiles(t, dir, nil)
	first, second := issueCA(t, start, 365*day), issueCA(t, start, 365*day)
	cas := func() []string {
		list, err := certs.ParseBundle(source.Bundle())
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, ca := range list {
			switch {
			case ca.Equal(first.Certificate):
				names = append(names, "first")
			case ca.Equal(second.Certificate):
				names = append(names, "second")
			}
		}
		return names
	}
	writeFiles(t, dir, leafFiles(t, first, start))
	checkError(t, source.Refresh(t.Context()), "")
	if diff := cmp.Diff([]string{"first"}, cas()); diff != "" {
		t.Errorf("at first (-want +got):\n%s", diff)
	}
	writeFiles(t, dir, leafFiles(t, second, start))
	checkError(t, source.Refresh(t.Context()), "")
	if got := cas(); len(got) != 2 {
		t.Errorf("after the change the bundle holds %v, want both", got)
	}
	pass(time.Hour + time.Second)
	checkError(t, source.Refresh(t.Context()), "")
	checkError(t, source.Refresh(t.Context()), "")
	if diff := cmp.Diff([]string{"second"}, cas()); diff != "" {
		t.Errorf("after an hour (-want +got):\n%s", diff)
	}
}

// recorder keeps events.
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) Eventf(about, _ runtime.Object, kind, reason, _, note string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf("%s %s about %s: ", kind, reason, about.GetObjectKind().GroupVersionKind().Kind)+fmt.Sprintf(note, args...))
}

func (r *recorder) all() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.events, "\n")
}

// startCertManagerMode starts a replica that leads.
func startCertManagerMode(t *testing.T, server client.WithWatch, events *recorder) *certs.Serving {
	t.Helper()
	opts := options()
	opts.Mode, opts.Events = certs.ModeCertManager, events
	serving, err := certs.Assemble(server, host, opts, targets()...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(run(t, append(serving.Leader, serving.Published, serving.Source)...))
	return serving
}

func TestCertManagerThatIsNotInstalledIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noMatch := func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
			return &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "cert-manager.io", Kind: "Issuer"}, SearchedVersions: []string{"v1"}}
		}
		events := &recorder{}
		serving := startCertManagerMode(t, interceptor.NewClient(newAPIServer(t, manifests()...), interceptor.Funcs{Apply: noMatch}), events)
		pass(5 * time.Second)
		checkError(t, serving.Readiness.Ready(t.Context()), "declaring Issuer system/sidecarset-selfsigned: cert-manager's CustomResourceDefinitions are not installed; install cert-manager or use --cert-mode=self")
	})
}

// The message of cert-manager appears in readiness at once, and in an event when it has
// lasted.
func TestCertManagerThatDoesNotIssueIsQuoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newAPIServer(t, manifests()...)
		signer, events := &signer{client: server}, &recorder{}
		signer.refuse("Issuing certificate as Secret does not exist")
		signer.start(t)
		serving := startCertManagerMode(t, server, events)
		pass(10 * time.Second)
		want := "Certificate system/sidecarset-ca is not ready: DoesNotExist: Issuing certificate as Secret does not exist"
		checkError(t, serving.Readiness.Ready(t.Context()), want)
		if got := events.all(); got != "" {
			t.Errorf("an event before the time is over: %s", got)
		}
		pass(2*time.Minute + 10*time.Second)
		if diff := cmp.Diff("Warning CertificateNotIssued about Certificate: "+want, events.all()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		signer.refuse("")
		pass(30 * time.Second)
		checkError(t, serving.Readiness.Ready(t.Context()), "")
	})
}

// The chain has a CA that keeps its key, so that its renewal changes nothing for clients.
func TestCertManagerModeDeclaresACAAndAServingCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := newAPIServer(t, manifests()...)
		startCertManagerMode(t, server, &recorder{})
		pass(5 * time.Second)
		get := func(name string, into client.Object) {
			if err := server.Get(t.Context(), client.ObjectKey{Namespace: "system", Name: name}, into); err != nil {
				t.Fatal(err)
			}
		}
		ca, serving := &certmanagerv1.Certificate{}, &certmanagerv1.Certificate{}
		selfSigned, issuer := &certmanagerv1.Issuer{}, &certmanagerv1.Issuer{}
		get("sidecarset-ca", ca)
		get("sidecarset-serving", serving)
		get("sidecarset-selfsigned", selfSigned)
		get("sidecarset-ca", issuer)
		if !ca.Spec.IsCA || ca.Spec.PrivateKey.RotationPolicy != certmanagerv1.RotationPolicyNever || ca.Spec.IssuerRef.Name != selfSigned.Name {
			t.Errorf("CA: %+v", ca.Spec)
		}
		if serving.Spec.IsCA || serving.Spec.PrivateKey.RotationPolicy != certmanagerv1.RotationPolicyAlways || serving.Spec.IssuerRef.Name != issuer.Name {
			t.Errorf("serving certificate: %+v", serving.Spec)
		}
		if diff := cmp.Diff([]string{host}, serving.Spec.DNSNames); diff != "" {
			t.Errorf("names (-want +got):\n%s", diff)
		}
		if selfSigned.Spec.SelfSigned == nil || issuer.Spec.CA == nil || issuer.Spec.CA.SecretName != ca.Spec.SecretName {
			t.Errorf("issuers: %+v, %+v", selfSigned.Spec, issuer.Spec)
		}

		// The leader reverts changes of what it declared.
		serving.Spec.DNSNames = []string{"other.example.com"}
		if err := server.Update(t.Context(), serving); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute + 5*time.Second)
		get("sidecarset-serving", serving)
		if diff := cmp.Diff([]string{host}, serving.Spec.DNSNames); diff != "" {
			t.Errorf("names that a user changed (-want +got):\n%s", diff)
		}
	})
}
