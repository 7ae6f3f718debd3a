package certs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// CertManagerFieldOwner is the field manager with which the leader declares objects to cert-manager.
	CertManagerFieldOwner = "sidecarset-operator"
	// ReasonNotIssued is the reason of the event that says what cert-manager has not done in time.
	ReasonNotIssued = "CertificateNotIssued"

	// declareEvery is how often the leader applies its declarations again, in case another program changed them. Applying unchanged
	// objects writes nothing.
	declareEvery = time.Minute
)

// CertManager declares to cert-manager what the operator needs, and reports cert-manager's progress. It is a manager.Runnable that
// needs the leader. Every replica reads these objects, by name.
type CertManager struct {
	client     client.Client
	opts       Options
	serverName string

	undeclared atomic.Pointer[error] // why the last attempt to declare failed
}

// NeedLeaderElection has a manager start it on the leader only.
func (m *CertManager) NeedLeaderElection() bool { return true }

// Start applies the declarations, and reports what cert-manager does not do in time, until ctx ends.
func (m *CertManager) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("cert-manager"))
	var since time.Time // when there began to be a problem
	reported := ""
	for ctx.Err() == nil {
		err := m.Declare(ctx)
		m.undeclared.Store(&err)
		problem := m.problem(ctx)
		pause := declareEvery
		if problem == nil {
			since, reported = time.Time{}, ""
		} else {
			pause = min(pause, m.opts.Times.Patience/4, 5*time.Second)
			if since.IsZero() {
				since = time.Now()
			}
			if ctx.Err() == nil && time.Since(since) >= m.opts.Times.Patience && problem.Error() != reported {
				reported = problem.Error()
				m.report(ctx, problem)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

func (m *CertManager) report(ctx context.Context, problem error) {
	log.FromContext(ctx).Error(problem, "No certificate from cert-manager", "waited", m.opts.Times.Patience)
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: m.opts.Namespace, Name: servingCertificateName}
	if notReady, ok := errors.AsType[*notReadyError](problem); ok {
		ref.APIVersion, ref.Kind, ref.Name = certmanagerv1.SchemeGroupVersion.String(), notReady.kind, notReady.name
	}
	m.opts.warn(ref, ReasonNotIssued, "Issue", problem.Error())
}

// Declare applies the issuers and certificates, and reverts changes by other programs. It does not write an object that is as
// declared.
func (m *CertManager) Declare(ctx context.Context) error {
	for _, d := range m.opts.declarations() {
		bounded, cancel := context.WithTimeout(ctx, requestTimeout)
		err := m.client.Apply(bounded, d.apply, client.FieldOwner(CertManagerFieldOwner), client.ForceOwnership)
		cancel()
		if err != nil {
			return fmt.Errorf("declaring %s %s/%s: %w", d.kind, m.opts.Namespace, d.name, notInstalled(err))
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
	secret := &corev1.Secret{}
	err := m.get(ctx, servingCertificateName, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("waiting for %s: %w", m, m.why(ctx))
	case err != nil:
		return nil, fmt.Errorf("getting %s: %w", m, err)
	}
	if len(secret.Data[suppliedCertKey]) == 0 || len(secret.Data[suppliedKeyKey]) == 0 || len(secret.Data[suppliedCAKey]) == 0 {
		return nil, fmt.Errorf("waiting for %s, %s and %s in %s: %w", suppliedCertKey, suppliedKeyKey, suppliedCAKey, m, m.why(ctx))
	}
	return supplied(m, secret.Data, m.serverName)
}

// why returns the reason that there is no certificate.
func (m *CertManager) why(ctx context.Context) error {
	return cmp.Or(m.problem(ctx), errors.New("cert-manager says that it is ready"))
}

// problem returns the first object of the chain that is missing or not ready, or nil.
func (m *CertManager) problem(ctx context.Context) error {
	if err := m.undeclared.Load(); err != nil && *err != nil {
		return *err
	}
	for _, d := range m.opts.declarations() {
		ready, message, err := m.readiness(ctx, d)
		switch {
		case apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
			return fmt.Errorf("%s %s/%s does not exist yet: the leader declares it", d.kind, m.opts.Namespace, d.name)
		case err != nil:
			return fmt.Errorf("getting %s %s/%s: %w", d.kind, m.opts.Namespace, d.name, notInstalled(err))
		case !ready:
			return &notReadyError{d.kind, m.opts.Namespace, d.name, message}
		}
	}
	return nil
}

// notReadyError carries what cert-manager reports about an object.
type notReadyError struct{ kind, namespace, name, message string }

func (e *notReadyError) Error() string {
	return fmt.Sprintf("%s %s/%s is not ready: %s", e.kind, e.namespace, e.name, e.message)
}

// readiness reports whether cert-manager says that an object is ready, and what it says. It joins two conditions: Ready says whether
// there is a certificate, and Issuing, which only a Certificate has, says why there is none.
func (m *CertManager) readiness(ctx context.Context, d declaration) (ready bool, message string, err error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(certmanagerv1.SchemeGroupVersion.WithKind(d.kind))
	if err := m.get(ctx, d.name, object); err != nil {
		return false, "", err
	}
	var read struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &read); err != nil {
		return false, "", err
	}
	message = "cert-manager has not said anything about it; does its controller run?"
	if c := meta.FindStatusCondition(read.Status.Conditions, string(certmanagerv1.CertificateConditionReady)); c != nil {
		ready, message = c.Status == metav1.ConditionTrue, c.Reason+": "+c.Message
	}
	if c := meta.FindStatusCondition(read.Status.Conditions, string(certmanagerv1.CertificateConditionIssuing)); c != nil {
		message += "; " + c.Reason + ": " + c.Message
	}
	return ready, message, nil
}

// notInstalled explains the error of an API server that does not know cert-manager's kinds.
func notInstalled(err error) error {
	if !meta.IsNoMatchError(err) {
		return err
	}
	return fmt.Errorf("cert-manager's CustomResourceDefinitions are not installed; install cert-manager or use --cert-mode=%s: %w", ModeSelf, err)
}

func (m *CertManager) get(ctx context.Context, name string, into client.Object) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return m.client.Get(ctx, client.ObjectKey{Namespace: m.opts.Namespace, Name: name}, into)
}
