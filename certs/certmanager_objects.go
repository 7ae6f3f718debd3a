package certs

import (
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	applyv1 "github.com/cert-manager/cert-manager/pkg/client/applyconfigurations/certmanager/v1"
	applymetav1 "github.com/cert-manager/cert-manager/pkg/client/applyconfigurations/meta/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The names of what is declared to cert-manager, all in the operator's namespace. A Certificate's Secret has the Certificate's name.
const (
	selfSignedIssuerName   = "sidecarset-selfsigned"
	caCertificateName      = "sidecarset-ca"
	caIssuerName           = "sidecarset-ca"
	servingCertificateName = "sidecarset-serving"
)

// declaration is one object that is declared to cert-manager. Declarations are in the order in which they depend on one another.
type declaration struct {
	kind, name string
	apply      runtime.ApplyConfiguration
}

// declarations returns the chain: an issuer whose only certificate is the CA, the CA, an issuer that signs with it, and the serving
// certificate. A serving certificate from a self-signed issuer would be its own CA, and every renewal would break TLS.
func (o Options) declarations() []declaration {
	issuer := func(name string, spec *applyv1.IssuerSpecApplyConfiguration) declaration {
		return declaration{"Issuer", name, applyv1.Issuer(name, o.Namespace).WithLabels(managedBy()).WithSpec(spec)}
	}
	certificate := func(name, issuer string, lifetime time.Duration, spec *applyv1.CertificateSpecApplyConfiguration) declaration {
		spec = spec.WithSecretName(name).
			WithSecretTemplate(applyv1.CertificateSecretTemplate().WithLabels(managedBy())).
			WithIssuerRef(applymetav1.IssuerReference().WithGroup(certmanagerv1.SchemeGroupVersion.Group).WithKind("Issuer").WithName(issuer)).
			WithDuration(metav1.Duration{Duration: lifetime}).
			WithRenewBefore(metav1.Duration{Duration: (lifetime / 3).Truncate(time.Second)})
		return declaration{"Certificate", name, applyv1.Certificate(name, o.Namespace).WithLabels(managedBy()).WithSpec(spec)}
	}
	ips := make([]string, 0, len(o.Subject.IPs))
	for _, ip := range o.Subject.IPs {
		ips = append(ips, ip.String())
	}
	return []declaration{
		issuer(selfSignedIssuerName, applyv1.IssuerSpec().WithSelfSigned(applyv1.SelfSignedIssuer())),
		certificate(caCertificateName, selfSignedIssuerName, caLife, applyv1.CertificateSpec().
			WithIsCA(true).
			WithCommonName(caName).
			WithUsages(certmanagerv1.UsageCertSign, certmanagerv1.UsageCRLSign).
			// The CA keeps its key when it is renewed. So older leaves verify against the new CA certificate, and newer leaves against the
			// old one.
			WithPrivateKey(privateKey(certmanagerv1.RotationPolicyNever))),
		issuer(caIssuerName, applyv1.IssuerSpec().WithCA(applyv1.CAIssuer().WithSecretName(caCertificateName))),
		certificate(servingCertificateName, caIssuerName, suppliedLife, applyv1.CertificateSpec().
			WithDNSNames(o.Subject.DNSNames...).
			WithIPAddresses(ips...).
			WithUsages(certmanagerv1.UsageDigitalSignature, certmanagerv1.UsageServerAuth).
			WithPrivateKey(privateKey(certmanagerv1.RotationPolicyAlways))),
	}
}

func privateKey(policy certmanagerv1.PrivateKeyRotationPolicy) *applyv1.CertificatePrivateKeyApplyConfiguration {
	return applyv1.CertificatePrivateKey().
		WithAlgorithm(certmanagerv1.ECDSAKeyAlgorithm).
		WithSize(256).
		WithRotationPolicy(policy)
}

func managedBy() map[string]string {
	return map[string]string{"app.kubernetes.io/managed-by": "sidecarset-operator"}
}
