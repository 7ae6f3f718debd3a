package certs_test

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/sidecarset/operator/certs"
)

// Reflectors report errors through handlers of which one sleeps until the time of the last error has passed. That time is shared by
// the whole process, while the clock of a bubble starts in the year 2000.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil
	os.Exit(m.Run())
}

const crdName = "sidecarsets.apps.kruise.io"

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// targets are those that every test publishes to.
func targets() []certs.Target {
	return []certs.Target{certs.MutatingWebhooks("defaulting"), certs.ValidatingWebhooks("checking"), certs.ConversionWebhook(crdName)}
}

func options() certs.Options {
	return certs.Options{Namespace: "system", SecretName: "ca", Subject: certs.Subject{DNSNames: []string{host}}}
}

func service() admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{
		Service: &admissionregistrationv1.ServiceReference{Namespace: "sidecarset-system", Name: "webhook", Path: new("/x")},
	}
}

func mutatingWebhooks(name string, entries ...string) *admissionregistrationv1.MutatingWebhookConfiguration {
	c := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, entry := range entries {
		c.Webhooks = append(c.Webhooks, admissionregistrationv1.MutatingWebhook{Name: entry, ClientConfig: service()})
	}
	return c
}

func validatingWebhooks(name string) *admissionregistrationv1.ValidatingWebhookConfiguration {
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks:   []admissionregistrationv1.ValidatingWebhook{{Name: "check.sidecarset.io", ClientConfig: service()}},
	}
}

func customResource(conversion map[string]any) *unstructured.Unstructured {
	crd := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"group": "apps.kruise.io", "conversion": conversion},
	}}
	crd.SetGroupVersionKind(crdKind)
	crd.SetName(crdName)
	return crd
}

func webhookConversion() map[string]any {
	return map[string]any{"strategy": "Webhook", "webhook": map[string]any{
		"conversionReviewVersions": []any{"v1"},
		"clientConfig":             map[string]any{"service": map[string]any{"name": "webhook", "namespace": "sidecarset-system", "path": "/convert"}},
	}}
}

// manifests are the objects that an administrator applies.
func manifests() []client.Object {
	return []client.Object{
		mutatingWebhooks("defaulting", "default.sidecarset.io", "more.sidecarset.io"),
		validatingWebhooks("checking"),
		customResource(webhookConversion()),
	}
}

// newAPIServer returns controller-runtime's fake API server: it stores, compares
// resourceVersions and can be watched. Rotations take months, so these tests run in bubbles,
// and no real API server can be in a bubble. The tests in test/chaos/certificates use
// real ones.
func newAPIServer(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, certs.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(crdKind)
	byName := func(o client.Object) []string { return []string{o.GetName()} }
	server := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&certmanagerv1.Issuer{}, &certmanagerv1.Certificate{}).
		WithTypeConverters(managedfields.NewDeducedTypeConverter()). // the default one parses every API's schema

		WithIndex(&admissionregistrationv1.MutatingWebhookConfiguration{}, "metadata.name", byName).
		WithIndex(&admissionregistrationv1.ValidatingWebhookConfiguration{}, "metadata.name", byName).
		WithIndex(crd, "metadata.name", byName).
		Build()
	return interceptor.NewClient(server, interceptor.Funcs{Watch: watchAll})
}

// watchAll does two things that a real API server does and the fake one does not. It begins
// with what was written since the list that precedes a watch (here: with all objects). It
// sends unstructured objects to clients that ask for them.
func watchAll(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
	later, err := c.Watch(ctx, l, opts...)
	if err != nil {
		return nil, err
	}
	now := l.DeepCopyObject().(client.ObjectList)
	if err := c.List(ctx, now, opts...); err != nil {
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
	go func() {
		defer close(events)
		defer later.Stop()
		for _, item := range items {
			select {
			case events <- watch.Event{Type: watch.Modified, Object: item}:
			case <-w.StopChan():
				return
			}
		}
		for {
			select {
			case e, ok := <-later.ResultChan():
				if !ok {
					return
				}
				if untyped {
					e.Object = toUnstructured(e.Object)
				}
				select {
				case events <- e:
				case <-w.StopChan():
					return
				}
			case <-w.StopChan():
				return
			}
		}
	}()
	return w, nil
}

func toUnstructured(o runtime.Object) runtime.Object {
	if _, ok := o.(*unstructured.Unstructured); ok {
		return o
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		panic(err)
	}
	return &unstructured.Unstructured{Object: object}
}

// replica is one process of the operator.
type replica struct {
	client    client.WithWatch
	published *certs.Published
	source    certs.Source
	readiness *certs.Readiness
	leader    []manager.Runnable
	stop      func()
	stopLead  func() // nil unless it leads

	mu      sync.Mutex
	cutOff  bool // from the API server
	watches []watch.Interface
}

// connect connects the replica to the API server, or cuts it off. Its watches end when it is
// cut off.
func (r *replica) connect(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cutOff = !yes
	for _, w := range r.watches {
		if !yes {
			w.Stop()
		}
	}
}

var errCutOff = errors.New("the API server cannot be reached")

func (r *replica) connected() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.cutOff
}

// newReplica makes a replica; it is connected.
func newReplica(t *testing.T, server client.WithWatch, opts certs.Options, targets ...certs.Target) *replica {
	t.Helper()
	r := &replica{}
	gate := func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.cutOff {
			return errCutOff
		}
		if opts.ServerClock != nil {
			opts.ServerClock.Answered(time.Now(), 0)
		}
		return nil
	}
	r.client = interceptor.NewClient(server, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if err := gate(); err != nil {
				return err
			}
			return c.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			if err := gate(); err != nil {
				return err
			}
			return c.List(ctx, l, opts...)
		},
		Watch: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
			if err := gate(); err != nil {
				return nil, err
			}
			w, err := c.Watch(ctx, l, opts...)
			if err == nil {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.watches = append(r.watches, w)
			}
			return w, err
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := gate(); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := gate(); err != nil {
				return err
			}
			return c.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := gate(); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
	})
	serving, err := certs.Assemble(r.client, host, opts, targets...)
	if err != nil {
		t.Fatalf("Assemble: %v", err)
	}
	r.published, r.source, r.readiness, r.leader = serving.Published, serving.Source, serving.Readiness, serving.Leader
	return r
}

// run starts runnables, and returns a function that stops them and waits.
func run(t *testing.T, runnables ...manager.Runnable) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, r := range runnables {
		wg.Go(func() {
			if err := r.Start(ctx); err != nil {
				t.Errorf("Start: %v", err)
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// start runs the replica until the test ends.
func (r *replica) start(t *testing.T) {
	r.stop = run(t, r.published, r.source)
	t.Cleanup(r.stop)
}

// lead does the leader's work on this replica until resign or the end of the test.
func (r *replica) lead(t *testing.T) {
	r.stopLead = run(t, r.leader...)
	t.Cleanup(r.resign)
}

func (r *replica) resign() {
	if r.stopLead != nil {
		r.stopLead()
		r.stopLead = nil
	}
}

// pass lets that much time go by in the bubble of the test.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func getSecret(t *testing.T, c client.Client) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "system", Name: "ca"}, secret); err != nil {
		t.Fatalf("getting the Secret: %v", err)
	}
	return secret
}

func getAuthority(t *testing.T, c client.Client, now time.Time) certs.Authority {
	t.Helper()
	a, err := certs.DecodeAuthority(getSecret(t, c), now)
	if err != nil {
		t.Fatalf("DecodeAuthority: %v", err)
	}
	return a
}

// publishedBundles reads the CA bundles that API servers trust, by place.
func publishedBundles(t *testing.T, c client.Client) map[string]string {
	t.Helper()
	bundles := map[string]string{}
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{}
	if c.Get(t.Context(), client.ObjectKey{Name: "defaulting"}, mutating) == nil {
		for _, w := range mutating.Webhooks {
			bundles["defaulting/"+w.Name] = string(w.ClientConfig.CABundle)
		}
	}
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if c.Get(t.Context(), client.ObjectKey{Name: "checking"}, validating) == nil {
		for _, w := range validating.Webhooks {
			bundles["checking/"+w.Name] = string(w.ClientConfig.CABundle)
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
		bundles["crd"] = string(bundle)
	}
	return bundles
}
