package certs_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/sidecarset/operator/certs"
)

// The same invariants hold in every mode, with the times of production. Mode cert-manager differs from mode files only in where the files
// come from. Here the API server is a stand-in; TestRotationLosesNoCall and TestCertManager in test/chaos have real ones.
func TestInvariants(t *testing.T) {
	for name, configure := range map[string]func(*mode, *testing.T){"self": (*mode).selfManaged, "files": (*mode).mounted} {
		for invariant, test := range invariants {
			t.Run(name+"/"+invariant, func(t *testing.T) {
				if invariant != ofTheProcess {
					t.Parallel()
				}
				inBubble(t, configure, test)
			})
		}
	}
	for invariant, test := range selfInvariants {
		t.Run("self/"+invariant, func(t *testing.T) {
			t.Parallel()
			inBubble(t, (*mode).selfManaged, test)
		})
	}
}

// inBubble runs an invariant in a bubble, with a stand-in for the API server.
func inBubble(t *testing.T, configure func(*mode, *testing.T), test func(*testing.T, *mode)) {
	dir := t.TempDir() // outside of the bubble, which it outlives
	synctest.Test(t, func(t *testing.T) {
		times := certs.DefaultTimes
		times.PollClock = 5 * time.Second // a bubble of half an hour takes a fifth of the time
		m := &mode{writes: &writes{next: make(chan struct{})}, Options: certs.Options{
			Namespace: "system", SecretName: "ca", Directory: dir, Subject: certs.Subject{DNSNames: []string{host}}, Times: times,
		}}
		m.WithWatch = newAPIServer(t, m.writes)
		configure(m, t)
		test(t, m)
	})
}

const (
	host    = "webhook.sidecarset-system.svc"
	crdName = "sidecarsets.apps.kruise.io"
)

var (
	crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
	targets = certs.Targets{Mutating: "defaulting", Validating: "checking", Definition: crdName}
)

// mounted is the mode in which the administrator mounts files.
func (m *mode) mounted(t *testing.T) {
	m.Mode, m.empty = certs.ModeFiles, "no such file or directory"
	var ca certs.KeyPair
	m.renew = func(t *testing.T) { m.mount(t, ca) }
	m.provide = func(t *testing.T) {
		ca = issueCA(t, time.Now(), day)
		m.renew(t)
	}
	m.changeCA = m.provide
}

// mount replaces what is mounted by a new key pair of the CA. It does it as a kubelet does: a link leads to
// another directory.
func (m *mode) mount(t *testing.T, ca certs.KeyPair) {
	t.Helper()
	leaf, err := ca.IssueLeaf(m.Subject)
	if err != nil {
		t.Fatal(err)
	}
	cert, key := encode(t, leaf)
	dir, err := os.MkdirTemp(m.Directory, "..version") //nolint:usetesting // beside the link, as a kubelet does
	errs := []error{err}
	for name, content := range map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": bundleOf(ca.Certificate)} {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), content, 0o600))
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(m.Directory, name)); !errors.Is(err, os.ErrExist) {
			errs = append(errs, err)
		}
	}
	link := filepath.Join(m.Directory, "..data")
	if err := errors.Join(append(errs, os.Symlink(filepath.Base(dir), link+"_tmp"), os.Rename(link+"_tmp", link))...); err != nil {
		t.Fatal(err)
	}
}

// newAPIServer returns controller-runtime's fake API server with the manifests: it stores, and compares resourceVersions. No real
// API server can be in a bubble.
func newAPIServer(t *testing.T, w *writes) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	service := admissionregistrationv1.WebhookClientConfig{
		Service: &admissionregistrationv1.ServiceReference{Namespace: "sidecarset-system", Name: "webhook", Path: new("/x")},
	}
	crd := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"group": "apps.kruise.io", "conversion": map[string]any{
		"strategy": "Webhook", "webhook": map[string]any{
			"clientConfig": map[string]any{"service": map[string]any{"name": "webhook", "namespace": "sidecarset-system", "path": "/convert"}},
		},
	}}}}
	crd.SetGroupVersionKind(crdKind)
	crd.SetName(crdName)
	return interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).
		WithObjects(
			&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "defaulting"}, Webhooks: []admissionregistrationv1.MutatingWebhook{
				{Name: "default.sidecarset.io", ClientConfig: service}, {Name: "more.sidecarset.io", ClientConfig: service},
			}},
			&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "checking"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{
				{Name: "check.sidecarset.io", ClientConfig: service},
			}},
			crd,
		).
		WithTypeConverters(managedfields.NewDeducedTypeConverter()). // the default one parses every API's schema
		WithReturnManagedFields().
		Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return w.happened(c.Create(ctx, o, opts...))
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return w.happened(c.Update(ctx, o, opts...))
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return w.happened(c.Patch(ctx, o, p, opts...))
		},
	})
}

// writes tells when something was written.
type writes struct {
	mu   sync.Mutex
	next chan struct{}
}

func (w *writes) wait() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next
}

func (w *writes) happened(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.next)
	w.next = make(chan struct{})
	return err
}

// informers tell a replica what is stored under the name of each kind. They end with the test.
type informers struct {
	t *testing.T
	m *mode
	r *replica
}

// GetInformer returns an informer of a kind.
func (i informers) GetInformer(_ context.Context, kind client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	name := crdName
	switch kind.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		name = targets.Mutating
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		name = targets.Validating
	}
	return &informer{informers: i, kind: kind, key: client.ObjectKey{Name: name}}, nil
}

type informer struct {
	cache.Informer
	informers
	kind client.Object
	key  client.ObjectKey
}

// AddEventHandler adds a handler, which has the first object when it returns.
func (i *informer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(i.t.Context()))
	tell := func() {
		if now := i.kind.DeepCopyObject().(client.Object); i.m.Get(ctx, i.key, now) == nil {
			h.OnAdd(now, false)
		}
	}
	next := i.m.writes.wait()
	tell()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			select {
			case <-next:
			case <-ctx.Done():
			}
			for i.r.deaf.Load() && ctx.Err() == nil {
				<-time.After(time.Second)
			}
			next = i.m.writes.wait()
			tell()
		}
	}()
	i.t.Cleanup(func() { cancel(); <-done })
	return i, nil
}

// HasSynced reports true: AddEventHandler has told.
func (*informer) HasSynced() bool { return true }

// bundle is what API servers trust in one place. version changes with every write of its object; it is "" if API
// servers cannot go back to an older one there.
type bundle struct{ pem, version string }

// bundles reads the CA bundles that API servers trust, by place.
func (m *mode) bundles(t *testing.T) map[string]bundle {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	mutating, validating, crd := &admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}, &unstructured.Unstructured{}
	crd.SetGroupVersionKind(crdKind)
	if err := errors.Join(m.Get(ctx, client.ObjectKey{Name: "defaulting"}, mutating), m.Get(ctx, client.ObjectKey{Name: "checking"}, validating), m.Get(ctx, client.ObjectKey{Name: crdName}, crd)); err != nil {
		t.Errorf("reading what is published: %v", err)
	}
	bundles := map[string]bundle{}
	for _, w := range mutating.Webhooks {
		bundles["defaulting/"+w.Name] = bundle{string(w.ClientConfig.CABundle), mutating.ResourceVersion}
	}
	for _, w := range validating.Webhooks {
		bundles["checking/"+w.Name] = bundle{string(w.ClientConfig.CABundle), validating.ResourceVersion}
	}
	encoded, _, _ := unstructured.NestedString(crd.Object, "spec", "conversion", "webhook", "clientConfig", "caBundle")
	decoded, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		t.Errorf("caBundle of the CRD: %v", err)
	}
	bundles["crd"] = bundle{string(decoded), ""} // an API server converts by one copy
	return bundles
}

// reset puts a bundle into one place; nil removes it.
func (m *mode) reset(t *testing.T, bundle []byte) {
	t.Helper()
	c := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if err := m.Get(t.Context(), client.ObjectKey{Name: "defaulting"}, c); err != nil {
		t.Fatal(err)
	}
	c.Webhooks[0].ClientConfig.CABundle = bundle
	if err := m.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// encode returns the two PEM documents of a key pair.
func encode(t *testing.T, pair *tls.Certificate) (cert, key []byte) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func issueCA(t *testing.T, now time.Time, lifetime time.Duration) certs.KeyPair {
	t.Helper()
	ca, err := certs.IssueCA("test", now, lifetime)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func bundleOf(cas ...*x509.Certificate) []byte { return certs.EncodeBundle(cas) }
