package deploy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
)

// ServerName is the name that the API server expects in the serving certificate.
const ServerName = Service + "." + Namespace + ".svc"

// Client returns a client that talks to this replica, whatever the URL's host,
// and trusts the CAs in the bundle that the API server has. The caller closes its
// idle connections.
func (r *Replica) Client(ctx context.Context) (*http.Client, error) {
	bundle, err := r.operator.Bundle(ctx)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		return nil, fmt.Errorf("the published bundle holds no certificate: %q", bundle)
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: ServerName},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, r.Webhook)
		},
	}
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}, nil
}

// Trusting is Client in a test, for connections that come from an address; "" means any.
func (r *Replica) Trusting(t testing.TB, from string) *http.Client {
	t.Helper()
	client, err := r.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	if from != "" {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, r.Webhook)
		}
	}
	return client
}

// Injects returns nil if this replica would inject the SidecarSet into a new Pod
// with the labels.
func (r *Replica) Injects(ctx context.Context, sidecarSet, namespace string, labels map[string]string) error {
	body, err := json.Marshal(podReview(namespace, labels))
	if err != nil {
		return err
	}
	patch, err := r.Patch(ctx, body)
	if err != nil {
		return err
	}
	if !strings.Contains(string(patch), `"sidecarSetName\":\"`+sidecarSet+`\"`) {
		return fmt.Errorf("%s would not inject %s: its patch is %q", r.Name, sidecarSet, patch)
	}
	return nil
}

// Patch sends this AdmissionReview to the replica, as the API server does, and returns the patch
// for the new Pod. It is nil if the replica does not change the Pod.
func (r *Replica) Patch(ctx context.Context, review []byte) ([]byte, error) {
	httpClient, err := r.Client(ctx)
	if err != nil {
		return nil, err
	}
	defer httpClient.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+ServerName+"/pods", bytes.NewReader(review))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := httpClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answer admissionv1.AdmissionReview
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("reading the answer of %s: %w", r.Name, err)
	}
	if answer.Response == nil || !answer.Response.Allowed {
		return nil, fmt.Errorf("%s refuses: %v", r.Name, answer.Response)
	}
	return answer.Response.Patch, nil
}

func podReview(namespace string, labels map[string]string) map[string]any {
	return map[string]any{
		"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
		"request": map[string]any{
			"uid": "probe", "operation": "CREATE", "namespace": namespace, "dryRun": true,
			"kind":     map[string]any{"group": "", "version": "v1", "kind": "Pod"},
			"resource": map[string]any{"group": "", "version": "v1", "resource": "pods"},
			"object": map[string]any{
				"metadata": map[string]any{"name": "probe", "labels": labels},
				"spec":     map[string]any{"containers": []any{map[string]any{"name": "probe", "image": "probe"}}},
			},
		},
	}
}
