package certificates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	certmanagermetav1 "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/conformance"
)

// The laws of certs/conformance_test.go hold with a real API server, which calls the replicas,
// and with a real cert-manager.
func TestConformance(t *testing.T) {
	modes := map[string]func(*testing.T, *conformance.Mode){
		"self":         func(_ *testing.T, m *conformance.Mode) { m.Self() },
		"cert-manager": certManagerMode,
		"files":        func(t *testing.T, m *conformance.Mode) { m.Files(t.TempDir()) },
	}
	for name, configure := range modes {
		t.Run(name, func(t *testing.T) {
			for law, test := range conformance.Tests {
				t.Run(law, func(t *testing.T) {
					if law != conformance.OfTheProcess {
						t.Parallel()
					}
					m := newMode(t)
					configure(t, m)
					test(t, m)
				})
			}
		})
	}
}

// The laws of mode self hold with a real API server, too.
func TestSelfManaged(t *testing.T) {
	for law, test := range conformance.SelfTests {
		t.Run(law, func(t *testing.T) {
			t.Parallel()
			m := newMode(t)
			m.Self()
			test(t, m)
		})
	}
}

// certManagerMode is the mode with a real cert-manager. Its certificates are valid from the present
// moment on, and a replica serves one when it is some seconds old.
func certManagerMode(t *testing.T, m *conformance.Mode) {
	needCertManager(t)
	m.Options.Mode = certs.ModeCertManager
	m.MayHoldKey = "sidecarset-serving"
	m.Empty = fmt.Sprintf("Issuer %s/sidecarset-selfsigned does not exist yet: the leader declares it", m.Options.Namespace)
	m.Renew = func(t *testing.T) { reissue(t, api, m.Options.Namespace, "sidecarset-serving") }
	m.ChangeCA = func(t *testing.T) {
		ca := &corev1.Secret{}
		get(t, m.Options.Namespace, "sidecarset-ca", ca)
		before := ca.Data[corev1.TLSCertKey]
		if err := api.Delete(t.Context(), ca); err != nil {
			t.Fatal(err)
		}
		await.Eventually(t, "another CA", func(ctx context.Context) error {
			err := api.Get(ctx, client.ObjectKeyFromObject(ca), ca)
			if err == nil && bytes.Equal(ca.Data[corev1.TLSCertKey], before) {
				err = errors.New("it is the same")
			}
			return err
		})
		// The issuer may sign with the CA from before, until it notices the new CA.
		await.Eventually(t, "a leaf of the other CA", func(ctx context.Context) error {
			serving := &corev1.Secret{}
			get(t, m.Options.Namespace, "sidecarset-serving", serving)
			if bytes.Equal(serving.Data["ca.crt"], ca.Data[corev1.TLSCertKey]) {
				return nil
			}
			reissue(t, api, m.Options.Namespace, "sidecarset-serving")
			return errors.New("it is of the CA from before")
		})
	}
}

// reissue does what `cmctl renew` does, and waits for the outcome.
func reissue(t *testing.T, api client.Client, namespace, name string) {
	t.Helper()
	certificate := &certmanagerv1.Certificate{}
	revision := 0
	await.Eventually(t, "asking for Certificate "+name, func(ctx context.Context) error {
		if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, certificate); err != nil {
			return err
		}
		if certificate.Status.Revision == nil {
			return errors.New("nothing was issued yet")
		}
		revision = *certificate.Status.Revision
		now := metav1.Now()
		certificate.Status.Conditions = append(certificate.Status.Conditions, certmanagerv1.CertificateCondition{
			Type: certmanagerv1.CertificateConditionIssuing, Status: certmanagermetav1.ConditionTrue,
			Reason: "ManuallyTriggered", Message: "Certificate re-issuance manually triggered", LastTransitionTime: &now,
		})
		return api.Status().Update(ctx, certificate)
	})
	await.Eventually(t, "issuing Certificate "+name, func(ctx context.Context) error {
		if err := api.Get(ctx, client.ObjectKeyFromObject(certificate), certificate); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if certificate.Status.Revision == nil || *certificate.Status.Revision == revision {
			return fmt.Errorf("revision %d is still the last one: %+v", revision, certificate.Status.Conditions)
		}
		return nil
	})
}

func get(t *testing.T, namespace, name string, into client.Object) {
	t.Helper()
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, into); err != nil {
		t.Fatal(err)
	}
}
