package certs

import (
	"cmp"
	"errors"
	"fmt"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Serving has the parts that every replica needs in order to serve.
type Serving struct {
	Source    Source
	Published *Published
	// Readiness is the check for mgr.AddReadyzCheck.
	Readiness *Readiness
	// Leader is what the leader runs: it rotates the CA or declares objects to cert-manager, and publishes the bundle. A manager without
	// leader election starts it on every replica, so a process that only serves webhooks must not add it.
	Leader []manager.Runnable
}

// AddToScheme adds the types of which the clients of this package read or apply objects.
func AddToScheme(scheme *runtime.Scheme) error {
	return errors.Join(corev1.AddToScheme(scheme), admissionregistrationv1.AddToScheme(scheme), certmanagerv1.AddToScheme(scheme))
}

// Setup adds to the manager what every replica runs to serve with certificates of opts.Mode. API servers call under the name
// serverName, which must be one of those in opts.Subject.
//
// A manager starts runnables after its cache has synced, and then elects a leader. So when the manager starts, its cache must not
// have an informer whose objects API servers convert by this operator's webhook. Its LIST would fail until there is a certificate
// and a published bundle, and these would wait for the LIST. Add such an informer from a runnable.
func Setup(mgr manager.Manager, serverName string, opts Options, targets ...Target) (*Serving, error) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		return nil, err
	}
	opts.ServerClock = cmp.Or(opts.ServerClock, NewServerClock(opts.Clock))
	answering := *mgr.GetHTTPClient()
	answering.Transport = opts.ServerClock.Wrap(answering.Transport)
	c, err := client.NewWithWatch(mgr.GetConfig(), client.Options{
		HTTPClient: &answering,
		Scheme:     scheme,
		Mapper:     mgr.GetRESTMapper(),
	})
	if err != nil {
		return nil, fmt.Errorf("making a client for certificates: %w", err)
	}
	if opts.Events == nil {
		opts.Events = mgr.GetEventRecorder("sidecarset-operator-certs")
	}
	serving, err := Assemble(c, serverName, opts, targets...)
	if err != nil {
		return nil, err
	}
	for _, runnable := range []manager.Runnable{serving.Published, serving.Source} {
		if err := mgr.Add(runnable); err != nil {
			return nil, fmt.Errorf("adding certificates to the manager: %w", err)
		}
	}
	return serving, nil
}

// Assemble is Setup without a manager. The caller starts Serving.Published and Serving.Source, and on one replica Serving.Leader.
// The client must not read from a cache, and its scheme needs what AddToScheme adds.
func Assemble(c client.WithWatch, serverName string, opts Options, targets ...Target) (*Serving, error) {
	opts, err := opts.complete()
	if err != nil {
		return nil, err
	}
	s := &Serving{Published: newPublished(c, opts.Subject, targets...)}
	switch opts.Mode {
	case ModeSelf:
		source := newSelfManaged(c, s.Published, opts)
		s.Source, s.Leader = source, []manager.Runnable{&Rotator{source: source}}
	case ModeCertManager:
		declarer := &CertManager{client: c, opts: opts}
		s.Source, s.Leader = newSupplied(declarer, s.Published, serverName, opts), []manager.Runnable{declarer}
	case ModeFiles:
		s.Source = newSupplied(directory(opts.Directory), s.Published, serverName, opts)
	}
	s.Readiness = NewReadiness(s.Source, s.Published, serverName, opts.ServerClock)
	s.Leader = append(s.Leader, &BundlePublisher{
		client: c, source: s.Source, published: s.Published, attempts: map[string]attempt{}, onlyOptional: opts.PublishedElsewhere,
	})
	return s, nil
}
