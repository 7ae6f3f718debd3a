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
	"testing"
	"testing/synctest"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/sidecarset/operator/certs"
)

// Reflectors report errors through handlers of which one sleeps until the time of the last error has passed. That time is shared by
// the whole process, while the clock of a bubble starts in the year 2000.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	os.Exit(m.Run())
}

// The same invariants hold in every mode, with the times of production. Mode cert-manager differs from mode files only in where the files
// come from; test/chaos/certificates has a real cert-manager. Here the API server is a stand-in; TestRotationLosesNoCall in
// test/chaos has real ones.
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
		times.Glance = 5 * time.Second // a bubble of half an hour takes a fifth of the time
		m := &mode{WithWatch: newAPIServer(t), Options: certs.Options{
			Namespace: "system", SecretName: "ca", Directory: dir, Subject: certs.Subject{DNSNames: []string{host}}, Times: times,
		}}
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

// newAPIServer returns controller-runtime's fake API server with the manifests: it stores, compares resourceVersions and can be
// watched. No real API server can be in a bubble.
func newAPIServer(t *testing.T) client.WithWatch {
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
	server := fake.NewClientBuilder().WithScheme(scheme).
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
		Build()
	return server
}

// informers are those of one replica.
type informers struct {
	t      *testing.T
	server client.WithWatch
}

// GetInformer starts an informer that ends with the test.
func (i informers) GetInformer(_ context.Context, prototype client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	var list client.ObjectList
	switch prototype.(type) {
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		list = &admissionregistrationv1.MutatingWebhookConfigurationList{}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		list = &admissionregistrationv1.ValidatingWebhookConfigurationList{}
	default:
		definitions := &unstructured.UnstructuredList{}
		definitions.SetGroupVersionKind(crdKind.GroupVersion().WithKind(crdKind.Kind + "List"))
		list = definitions
	}
	informer := toolscache.NewSharedIndexInformer(listThenWatch{&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			list := list.DeepCopyObject().(client.ObjectList)
			return list, i.server.List(ctx, list)
		},
		WatchFuncWithContext: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
			return watchAll(ctx, i.server, list.DeepCopyObject().(client.ObjectList))
		},
	}}, prototype, 0, toolscache.Indexers{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(i.t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); informer.RunWithContext(ctx) }()
	i.t.Cleanup(func() { cancel(); <-done })
	return informer, nil
}

// listThenWatch tells a reflector not to use WatchList, which the fake API server does not know.
type listThenWatch struct{ *toolscache.ListWatch }

// IsWatchListSemanticsUnSupported reports true.
func (listThenWatch) IsWatchListSemanticsUnSupported() bool { return true }

// watchAll does two things that a real API server does and the fake one does not. It begins with what was written since the list that
// precedes a watch (here: with all objects). It sends unstructured objects to clients that ask for them.
func watchAll(ctx context.Context, c client.WithWatch, l client.ObjectList) (watch.Interface, error) {
	later, err := c.Watch(ctx, l)
	if err != nil {
		return nil, err
	}
	now := l.DeepCopyObject().(client.ObjectList)
	if err := c.List(ctx, now); err != nil {
		later.Stop()
		return nil, err
	}
	items, err := meta.ExtractList(now)
	if err != nil {
		later.Stop()
		return nil, err
	}
	_, untyped := l.(*unstructured.UnstructuredList)
	events := make(chan watch.Event)
	w := watch.NewProxyWatcher(events)
	send := func(e watch.Event) bool {
		select {
		case events <- e:
			return true
		case <-w.StopChan():
			return false
		}
	}
	go func() {
		defer close(events)
		defer later.Stop()
		for _, item := range items {
			if !send(watch.Event{Type: watch.Modified, Object: item}) {
				return
			}
		}
		for {
			select {
			case e, ok := <-later.ResultChan():
				if !ok {
					return
				}
				if _, is := e.Object.(*unstructured.Unstructured); untyped && !is {
					object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(e.Object)
					if err != nil {
						panic(err)
					}
					e.Object = &unstructured.Unstructured{Object: object}
				}
				if !send(e) {
					return
				}
			case <-w.StopChan():
				return
			}
		}
	}()
	return w, nil
}

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
