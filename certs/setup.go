package certs

import (
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Serving is what every replica needs in order to serve, assembled.
type Serving struct {
	Source    Source
	Published *Published
	// Readiness is for mgr.AddReadyzCheck.
	Readiness *Readiness

	client client.Client
	self   *SelfManaged
}

// SetupSelfManaged adds to the manager what every replica runs to serve with self-managed certificates. The serverName is the name
// under which API servers call; it has to be one of those in opts.Subject.
//
// A manager starts runnables when its cache has synced, and elects a leader after that. So there must be no informer in the cache, at
// the time that the manager starts, whose objects API servers convert by our webhook: its list would fail until there is a certificate
// and a published bundle, and these would wait for its list. Add such an informer from a runnable.
func SetupSelfManaged(mgr manager.Manager, serverName string, opts Options, targets ...Target) (*Serving, error) {
	c, err := client.NewWithWatch(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(),
		Scheme:     mgr.GetScheme(),
		Mapper:     mgr.GetRESTMapper(),
	})
	if err != nil {
		return nil, fmt.Errorf("making a client for certificates: %w", err)
	}
	published := NewPublished(c, targets...)
	source, err := NewSelfManaged(c, published, opts)
	if err != nil {
		return nil, err
	}
	for _, runnable := range []manager.Runnable{published, source} {
		if err := mgr.Add(runnable); err != nil {
			return nil, fmt.Errorf("adding certificates to the manager: %w", err)
		}
	}
	return &Serving{
		Source:    source,
		Published: published,
		Readiness: NewReadiness(source, published, serverName, source.opts.Clock),
		client:    c,
		self:      source,
	}, nil
}

// SetupLeader adds to the manager what the leader does: rotate the CA and publish the bundle. A manager that elects no leader starts
// it on every replica, so a process that only serves webhooks must not call this.
func (s *Serving) SetupLeader(mgr manager.Manager) error {
	publisher := NewBundlePublisher(s.client, s.Source, s.Published, s.self.opts.Clock)
	for _, runnable := range []manager.Runnable{s.self.Rotator(), publisher} {
		if err := mgr.Add(runnable); err != nil {
			return fmt.Errorf("adding the leader's work on certificates to the manager: %w", err)
		}
	}
	return nil
}
