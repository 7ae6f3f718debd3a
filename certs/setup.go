package certs

import (
	"cmp"
	"errors"
	"fmt"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Serving has the parts of one process.
type Serving struct {
	Source    *Source
	Published *Published
	Publisher *Publisher
	// Leader is what the leader runs: it keeps the CA or declares objects to cert-manager, and publishes the bundle. A manager without
	// leader election starts it on every replica, so a process that only serves webhooks must not add it.
	Leader []manager.Runnable
}

// AddToScheme adds the types of which the clients of this package read or apply objects.
func AddToScheme(scheme *runtime.Scheme) error {
	return errors.Join(corev1.AddToScheme(scheme), admissionregistrationv1.AddToScheme(scheme), certmanagerv1.AddToScheme(scheme))
}

// Setup adds to the manager what every replica runs to serve with certificates of opts.Mode. API servers call under the name
// serverName, which must be one of those in opts.Subject. The manager's cache needs Targets.CacheByObject.
//
// A manager starts runnables after its cache has synced, and then elects a leader. So when the manager starts, its cache must not
// have an informer whose objects API servers convert by this operator's webhook. Its LIST would fail until there is a certificate
// and a published bundle, and these would wait for the LIST. Add such an informer from a runnable.
func Setup(mgr manager.Manager, serverName string, opts Options, targets Targets) (*Serving, error) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		return nil, err
	}
	c, err := client.New(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: scheme, Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("making a client for certificates: %w", err)
	}
	if opts.Events == nil {
		opts.Events = mgr.GetEventRecorder("sidecarset-operator-certs")
	}
	serving, err := Assemble(c, mgr.GetCache(), serverName, opts, targets)
	if err != nil {
		return nil, err
	}
	return serving, errors.Join(mgr.Add(serving.Published), mgr.Add(serving.Source))
}

// Assemble is Setup without a manager. The caller starts Serving.Published and Serving.Source, and on one replica Serving.Leader.
// The client must not read from a cache, and its scheme needs what AddToScheme adds.
func Assemble(c client.Client, informers Informers, serverName string, opts Options, targets Targets) (*Serving, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts.Mode, opts.Times = cmp.Or(opts.Mode, ModeSelf), cmp.Or(opts.Times, DefaultTimes)
	s, remove := &Serving{Published: newPublished(informers, opts.Subject, targets)}, opts.Times.Remove
	switch opts.Mode {
	case ModeSelf:
		secret := &authoritySecret{c, opts}
		s.Source = newSource(secret, s.Published, opts)
		s.Leader = []manager.Runnable{&keeper{secret, s.Source}}
	case ModeCertManager:
		declarer := &CertManager{client: c, opts: opts, serverName: serverName}
		s.Source = newSource(declarer, s.Published, opts)
		s.Leader = []manager.Runnable{declarer}
	case ModeFiles:
		s.Source = newSource(&directory{opts.Directory, serverName}, s.Published, opts)
		remove = opts.Times.RemoveFile
	}
	every := min(writeEvery, opts.Times.PollClock)
	s.Publisher = &Publisher{client: c, source: s.Source, onlyShards: opts.PublishedElsewhere, removal: removal{wait: remove}, attempts: map[objectKey]*attempt{},
		pauses: workqueue.NewTypedItemExponentialFailureRateLimiter[objectKey](every, slower*every)}
	s.Leader = append(s.Leader, s.Publisher)
	return s, nil
}
