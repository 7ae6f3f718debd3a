package certificates

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/conformance"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

const loopback = "127.0.0.1"

// site is what one test has for itself: a namespace, and webhooks that the API server calls for
// ConfigMaps in this namespace.
type site struct {
	namespace string
	entries   []*entry
}

// entry is a webhook of one replica. Each call has a handshake of its own.
type entry struct {
	url     string
	serving atomic.Pointer[certs.Serving]
	calls   atomic.Int64
}

// newMode makes a site, and returns a Mode with the values that all modes share.
func newMode(t *testing.T) *conformance.Mode {
	t.Helper()
	s := &site{namespace: testkit.Namespace(t, api, nil), entries: []*entry{newEntry(t), newEntry(t)}}
	s.register(t)
	targets := certs.Targets{Mutating: s.namespace, Validating: s.namespace, Definition: "sidecarsets.apps.kruise.io"}
	return &conformance.Mode{
		Client: api, Host: loopback,
		Options: certs.Options{
			Namespace: s.namespace, SecretName: "ca",
			Subject: certs.Subject{DNSNames: []string{"webhook." + s.namespace + ".svc"}, IPs: []net.IP{net.ParseIP(loopback)}},
			Times:   certs.DefaultTimes.Faster(deploy.Quicker),
		},
		Targets:   targets,
		Informers: func(t *testing.T) certs.Informers { return startCache(t, targets) },
		Bundles:   s.bundles,
		Reset:     s.reset,
		Serve:     func(_ *testing.T, number int, serving *certs.Serving) { s.entries[number].serving.Store(serving) },
		Call:      s.call,
		Patience:  await.Patience, Interval: 50 * time.Millisecond, Lag: time.Second,
	}
}

// startCache starts a cache as a manager has it, until the test ends.
func startCache(t *testing.T, targets certs.Targets) certs.Informers {
	t.Helper()
	c, err := cache.New(cluster.Config(), cache.Options{Scheme: api.Scheme(), ByObject: targets.CacheByObject()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.Start(ctx); err != nil {
			t.Errorf("watching: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

// newEntry starts a webhook server.
func newEntry(t *testing.T) *entry {
	t.Helper()
	e := &entry{}
	listener, err := tls.Listen("tcp", loopback+":0", &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			serving := e.serving.Load()
			if serving == nil {
				return nil, errors.New("no replica runs")
			}
			return serving.Source.GetCertificate(hello)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	e.url = "https://" + listener.Addr().String() + "/"
	server := &http.Server{Handler: http.HandlerFunc(e.allow), ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 5 * time.Second}
	server.SetKeepAlivesEnabled(false)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return e
}

// allow admits everything.
func (e *entry) allow(w http.ResponseWriter, r *http.Request) {
	e.calls.Add(1)
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "not an AdmissionReview", http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	review.Request = nil
	_ = json.NewEncoder(w).Encode(review)
}

// register makes the API server call the entries.
func (s *site) register(t *testing.T) {
	t.Helper()
	rules := []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}}
	only := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: s.namespace}}
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
	for i, e := range s.entries {
		mutating.Webhooks = append(mutating.Webhooks, admissionregistrationv1.MutatingWebhook{
			Name: fmt.Sprintf("replica-%d.sidecarset.io", i), ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &e.url},
			Rules: rules, NamespaceSelector: only, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: new(int32(30)),
		})
	}
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
	validating.Webhooks = []admissionregistrationv1.ValidatingWebhook{{
		Name: "replica-0.sidecarset.io", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &s.entries[0].url},
		Rules: rules, NamespaceSelector: only, SideEffects: new(admissionregistrationv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: new(int32(30)),
	}}
	for _, o := range []client.Object{mutating, validating} {
		if err := api.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := api.Delete(context.WithoutCancel(t.Context()), o); err != nil {
				t.Errorf("deleting webhooks: %v", err)
			}
		})
	}
}

// call makes the API server call every replica.
func (s *site) call(ctx context.Context) error {
	err := api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, GenerateName: "call-"}}, client.DryRunAll)
	if err != nil {
		return fmt.Errorf("creating a ConfigMap: %w", err)
	}
	return nil
}

func (s *site) bundles(ctx context.Context) (map[string]conformance.Bundle, error) {
	bundles := map[string]conformance.Bundle{}
	mutating, validating := &admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfiguration{}
	for _, o := range []client.Object{mutating, validating} {
		if err := api.Get(ctx, client.ObjectKey{Name: s.namespace}, o); err != nil {
			return nil, err
		}
	}
	for _, w := range mutating.Webhooks {
		bundles["mutating "+w.Name] = conformance.Bundle{PEM: string(w.ClientConfig.CABundle)}
	}
	for _, w := range validating.Webhooks {
		bundles["validating "+w.Name] = conformance.Bundle{PEM: string(w.ClientConfig.CABundle)}
	}
	return bundles, nil
}

// reset puts a CA bundle into one place; nil removes it, as kubectl replace with the manifest does.
func (s *site) reset(t *testing.T, bundle []byte) {
	t.Helper()
	operation := jsonpatch.NewOperation("add", "/webhooks/1/clientConfig/caBundle", bundle)
	if bundle == nil {
		operation = jsonpatch.NewOperation("remove", "/webhooks/1/clientConfig/caBundle", nil)
	}
	patch, err := json.Marshal([]jsonpatch.Operation{operation})
	if err != nil {
		t.Fatal(err)
	}
	c := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
	if err := api.Patch(t.Context(), c, client.RawPatch("application/json-patch+json", patch)); err != nil {
		t.Fatal(err)
	}
}
