package integration

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
	"github.com/sidecarset/operator/test/unauthenticated"
)

// apiServerIdentity is a client certificate by which webhooks recognise API servers, in files.
type apiServerIdentity struct{ dir string }

func (i apiServerIdentity) caFile() string { return filepath.Join(i.dir, "tls.crt") }

// flags returns the flags of an API server that shows the certificate to the operator's
// Service, as docs/security.md says.
func (i apiServerIdentity) flags() []string {
	return []string{"kube-apiserver=--admission-control-config-file=" + filepath.Join(i.dir, "admission.yaml")}
}

func newAPIServerIdentity() (apiServerIdentity, error) {
	dir, err := os.MkdirTemp("", "apiserver-identity-")
	if err != nil {
		return apiServerIdentity{}, err
	}
	i := apiServerIdentity{dir}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return i, err
	}
	own := &x509.Certificate{ // signed by itself
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kube-apiserver"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, own, own, key.Public(), key)
	if err != nil {
		return i, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return i, err
	}
	kubeconfig := filepath.Join(dir, "webhooks.kubeconfig")
	plugin := func(name string) string {
		return fmt.Sprintf("- name: %s\n  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: %s}\n", name, kubeconfig)
	}
	for name, content := range map[string][]byte{
		"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
		"webhooks.kubeconfig": fmt.Appendf(nil, "apiVersion: v1\nkind: Config\nusers:\n- name: %s\n  user: {client-certificate: %s, client-key: %s}\n",
			deploy.ServerName, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")),
		"admission.yaml": []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n" + plugin("MutatingAdmissionWebhook") + plugin("ValidatingAdmissionWebhook")),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return i, err
		}
	}
	return i, nil
}

// With --client-ca-file, a replica answers all calls of an API server that shows a certificate, and
// none of other clients.
func TestOnlyAPIServersAreAnswered(t *testing.T) {
	stand.NeedNamespace(t)
	operator.NeedReplicas(t)
	// The other replicas still run, and one of them leads and writes entries. This replica
	// does not lead.
	replica := operator.StartApart(t, 6, "--client-ca-file="+identity.caFile())
	if err := replica.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() { // before the replica stops
		for _, other := range replicas {
			if err := operator.AddEndpoint(ctx, other); err != nil {
				t.Error(err)
			}
		}
		if err := operator.RemoveEndpoint(ctx, replica); err != nil {
			t.Error(err)
		}
		if err := testkit.UntilCalled(ctx, api); err != nil {
			t.Error(err)
		}
	})
	if err := operator.AddEndpoint(t.Context(), replica); err != nil {
		t.Fatal(err)
	}
	for _, other := range replicas {
		if err := operator.RemoveEndpoint(t.Context(), other); err != nil {
			t.Fatal(err)
		}
	}
	if err := testkit.UntilCalled(t.Context(), api); err != nil {
		t.Fatal(err)
	}
	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, "selector: {matchLabels: {app: known}}\ncontainers: [{name: side, image: \"example.com/side:v1\"}]")
	awaitInjected(t, set, namespace, "app=known")
	if _, err := cluster.Kubectl(t.Context(), "", "get", "sidecarsets.v1alpha1.apps.kruise.io", set.GetName()); err != nil {
		t.Errorf("converting: %v", err)
	}

	response, err := replica.Trusting(t, "").Post("https://"+deploy.ServerName+"/pods", "application/json", strings.NewReader(unauthenticated.PodReview("default", "{}")))
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized {
		t.Errorf("an unauthenticated client got %s", response.Status)
	}
}
