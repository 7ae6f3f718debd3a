package certs_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"sync"
	"testing"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	certmanagermetav1 "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/certs"
)

// signer writes what cert-manager writes, for the chain that the operator declares.
type signer struct {
	client client.Client

	mu      sync.Mutex
	ca      certs.KeyPair
	expired map[string]bool // Certificates to issue anew
}

// start runs the signer until the test ends.
func (s *signer) start(t *testing.T) {
	t.Helper()
	s.expired = map[string]bool{}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			s.sign(ctx, t)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

func (s *signer) renew(_ *testing.T, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expired[name] = true
}

func (s *signer) sign(ctx context.Context, t *testing.T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var issuers certmanagerv1.IssuerList
	var certificates certmanagerv1.CertificateList
	if err := s.client.List(ctx, &issuers); err != nil {
		t.Errorf("listing Issuers: %v", err)
	}
	if err := s.client.List(ctx, &certificates); err != nil {
		t.Errorf("listing Certificates: %v", err)
	}
	for i := range issuers.Items {
		issuer := &issuers.Items[i]
		ready := []certmanagerv1.IssuerCondition{{Type: certmanagerv1.IssuerConditionReady, Status: certmanagermetav1.ConditionTrue, Reason: "IsReady"}}
		if !slices.Equal(issuer.Status.Conditions, ready) {
			issuer.Status.Conditions = ready
			s.update(ctx, t, issuer)
		}
	}
	for i := range certificates.Items { // "sidecarset-ca" before "sidecarset-serving"
		certificate := &certificates.Items[i]
		condition := certmanagerv1.CertificateCondition{Type: certmanagerv1.CertificateConditionReady, Status: certmanagermetav1.ConditionTrue, Reason: "Ready"}
		s.issue(ctx, t, certificate)
		if conditions := []certmanagerv1.CertificateCondition{condition}; !slices.Equal(certificate.Status.Conditions, conditions) {
			certificate.Status.Conditions = conditions
			s.update(ctx, t, certificate)
		}
	}
}

func (s *signer) update(ctx context.Context, t *testing.T, o client.Object) {
	if err := s.client.Status().Update(ctx, o); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		t.Errorf("writing the status of %s: %v", o.GetName(), err)
	}
}

// issue writes the Secret of a Certificate if it is missing, or has to be issued anew.
func (s *signer) issue(ctx context.Context, t *testing.T, certificate *certmanagerv1.Certificate) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: certificate.Namespace, Name: certificate.Spec.SecretName}, Type: corev1.SecretTypeTLS}
	err := s.client.Get(ctx, client.ObjectKeyFromObject(secret), secret)
	if err == nil && !s.expired[certificate.Name] {
		return
	}
	var pair *tls.Certificate
	if certificate.Spec.IsCA {
		s.ca = issueCA(t, time.Now(), certificate.Spec.Duration.Duration)
		pair = &tls.Certificate{Certificate: [][]byte{s.ca.Certificate.Raw}, PrivateKey: s.ca.Key}
	} else if pair, err = s.ca.IssueLeaf(certs.Subject{DNSNames: certificate.Spec.DNSNames}); err != nil {
		t.Errorf("IssueLeaf: %v", err)
		return
	}
	delete(s.expired, certificate.Name)
	cert, key := encode(t, pair)
	secret.Data = map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": bundleOf(s.ca.Certificate)}
	if secret.ResourceVersion == "" {
		err = s.client.Create(ctx, secret)
	} else {
		err = s.client.Update(ctx, secret)
	}
	if err != nil {
		t.Errorf("writing Secret %s: %v", secret.Name, err)
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
