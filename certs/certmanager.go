package certs

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// CertManagerFieldOwner is the field manager with which the leader declares objects to cert-manager.
	CertManagerFieldOwner = "sidecarset-operator"

	// declareEvery is how often the leader applies its declarations again, in case another program changed them. Applying unchanged
	// objects writes nothing.
	declareEvery = time.Minute
)

// CertManager declares to cert-manager what the operator needs. It is a manager.Runnable that needs the leader. Every replica reads
// the Secret that cert-manager fills.
type CertManager struct {
	client     client.Client
	opts       Options
	serverName string
}

// NeedLeaderElection has a manager start it on the leader only.
func (m *CertManager) NeedLeaderElection() bool { return true }

// Start applies the declarations until ctx ends. It logs a failure once, and tries again.
func (m *CertManager) Start(ctx context.Context) error {
	reported := ""
	for ctx.Err() == nil {
		pause, problem := declareEvery, ""
		if err := m.declare(ctx); err != nil {
			pause, problem = 5*time.Second, err.Error()
			if problem != reported && ctx.Err() == nil {
				log.FromContext(ctx).WithName("cert-manager").Error(err, "Failed to apply the cert-manager Certificates")
			}
		}
		reported = problem
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// declare applies the issuers and certificates, and reverts changes by other programs. It does not write an object that is as
// declared.
func (m *CertManager) declare(ctx context.Context) error {
	for _, d := range m.opts.declarations() {
		bounded, cancel := context.WithTimeout(ctx, requestTimeout)
		err := m.client.Apply(bounded, d.apply, client.FieldOwner(CertManagerFieldOwner), client.ForceOwnership)
		cancel()
		if meta.IsNoMatchError(err) {
			return fmt.Errorf("cert-manager's CustomResourceDefinitions are not installed; install cert-manager or use --cert-mode=%s: %w", ModeSelf, err)
		}
		if err != nil {
			return fmt.Errorf("declaring %s %s/%s: %w", d.kind, m.opts.Namespace, d.name, err)
		}
	}
	return nil
}

func (m *CertManager) String() string {
	return fmt.Sprintf("Secret %s/%s of cert-manager", m.opts.Namespace, servingCertificateName)
}

// load reads the Secret of the serving certificate. The replica reads it periodically instead of watching it: that needs fewer
// rights, and a watch can go silent.
func (m *CertManager) load(ctx context.Context) (*material, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	secret := &corev1.Secret{}
	err := m.client.Get(ctx, client.ObjectKey{Namespace: m.opts.Namespace, Name: servingCertificateName}, secret)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("getting %s: %w", m, err)
	}
	for _, part := range []string{suppliedCertKey, suppliedKeyKey, suppliedCAKey} {
		if len(secret.Data[part]) == 0 {
			return nil, fmt.Errorf("waiting for %s in %s; `kubectl describe -n %s issuers,certificates` says what is missing", part, m, m.opts.Namespace)
		}
	}
	return supplied(m, secret.Data, m.serverName)
}
