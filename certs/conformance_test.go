package certs_test

import (
	"context"
	"encoding/base64"
	"os"
	"testing"
	"testing/synctest"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
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
	"github.com/sidecarset/operator/test/conformance"
)

// Reflectors report errors through handlers of which one sleeps until the time of the last error has passed. That time is shared by
// the whole process, while the clock of a bubble starts in the year 2000.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	os.Exit(m.Run())
}

// The same laws hold in every mode, with the times of production. Here the API server and cert-manager are stand-ins;
// test/chaos/certificates checks the laws against the real ones, with times that are divided.
func TestConformance(t *testing.T) {
	modes := map[string]func(t *testing.T, m *conformance.Mode, dir string){
		"self":         func(_ *testing.T, m *conformance.Mode, _ string) { m.Self() },
		"cert-manager": certManagerMode,
		"files":        func(_ *testing.T, m *conformance.Mode, dir string) { m.Files(dir) },
	}
	for name, configure := range modes {
		for law, test := range conformance.Tests {
			t.Run(name+"/"+law, func(t *testing.T) {
				if law != conformance.OfTheProcess {
					t.Parallel()
				}
				inBubble(t, configure, test)
			})
		}
	}
}

func TestConformanceOfSelfManaged(t *testing.T) {
	for law, test := range conformance.SelfTests {
		t.Run(law, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(_ *testing.T, m *conformance.Mode, _ string) { m.Self() }, test)
		})
	}
}

// inBubble runs a law in a bubble, with a stand-in for the API server.
func inBubble(t *testing.T, configure func(*testing.T, *conformance.Mode, string), test func(*testing.T, *conformance.Mode)) {
	dir := t.TempDir() // outside of the bubble, which it outlives
	synctest.Test(t, func(t *testing.T) {
		m := newMode(t)
		configure(t, m, dir)
		test(t, m)
	})
}

const (
	host    = "webhook.sidecarset-system.svc"
	crdName = "sidecarsets.apps.kruise.io"
)

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// newMode returns what all modes share.
func newMode(t *testing.T) *conformance.Mode {
	server := newAPIServer(t)
	times := certs.DefaultTimes
	times.Glance = 5 * time.Second // a bubble of half an hour takes a fifth of the time
	return &conformance.Mode{
		Client: server, Host: host, Informers: func(t *testing.T) certs.Informers { return informers{t, server} },
		Options:  certs.Options{Namespace: "system", SecretName: "ca", Subject: certs.Subject{DNSNames: []string{host}}, Times: times},
		Targets:  certs.Targets{Mutating: "defaulting", Validating: "checking", Definition: crdName},
		Patience: 30 * time.Minute, Interval: 5 * time.Second, Lag: 20 * time.Second,
		Bundles: func(context.Context) (map[string]conformance.Bundle, error) { return publishedBundles(t, server), nil },
		Reset: func(t *testing.T, bundle []byte) {
			c := &admissionregistrationv1.MutatingWebhookConfiguration{}
			if err := server.Get(t.Context(), client.ObjectKey{Name: "defaulting"}, c); err != nil {
				t.Fatal(err)
			}
			c.Webhooks[0].ClientConfig.CABundle = bundle
			if err := server.Update(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func certManagerMode(t *testing.T, m *conformance.Mode, _ string) {
	m.Options.Mode = certs.ModeCertManager
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

// newAPIServer returns controller-runtime's fake API server with the manifests: it stores, compares resourceVersions and can be
// watched. No real API server can be in a bubble.
func newAPIServer(t *testing.T) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, certs.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
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
		WithStatusSubresource(&certmanagerv1.Issuer{}, &certmanagerv1.Certificate{}).
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

// publishedBundles reads the CA bundles that API servers trust, by place.
func publishedBundles(t *testing.T, c client.Client) map[string]conformance.Bundle {
	t.Helper()
	bundles := map[string]conformance.Bundle{}
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if c.Get(t.Context(), client.ObjectKey{Name: "defaulting"}, mutating) == nil {
		for _, w := range mutating.Webhooks {
			bundles["defaulting/"+w.Name] = conformance.Bundle{PEM: string(w.ClientConfig.CABundle), Version: mutating.ResourceVersion}
		}
	}
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if c.Get(t.Context(), client.ObjectKey{Name: "checking"}, validating) == nil {
		for _, w := range validating.Webhooks {
			bundles["checking/"+w.Name] = conformance.Bundle{PEM: string(w.ClientConfig.CABundle), Version: validating.ResourceVersion}
		}
	}
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(crdKind)
	if c.Get(t.Context(), client.ObjectKey{Name: crdName}, crd) == nil {
		encoded, _, _ := unstructured.NestedString(crd.Object, "spec", "conversion", "webhook", "clientConfig", "caBundle")
		bundle, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			t.Errorf("caBundle of the CRD: %v", err)
		}
		bundles["crd"] = conformance.Bundle{PEM: string(bundle)} // an API server converts by one copy
	}
	return bundles
}
