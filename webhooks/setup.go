package webhooks

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/propagation"
	"github.com/sidecarset/operator/internal/rival"
	"github.com/sidecarset/operator/webhooks/conversion"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
	"github.com/sidecarset/operator/webhooks/sidecarsets"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// The paths that config/webhook and config/crd name.
const (
	PathPods      = propagation.PathPods
	PathPodsFresh = propagation.PathPodsFresh
	PathDefault   = "/mutate-apps-kruise-io-sidecarset"
	PathValidate  = "/validate-apps-kruise-io-sidecarset"
	PathConvert   = "/convert"
)

// Options say what the webhooks need to know of the installation.
type Options struct {
	// Catalog decides about Pods. It runs on every replica; whoever made it adds
	// it to the manager.
	Catalog *snapshot.Catalog
	// Timeline notices that the cluster's state was restored.
	Timeline *snapshot.Timeline
	// Namespace is the operator's.
	Namespace string
	// RevisionNamespace holds the ConfigMap that says which annotations SidecarSets
	// may set, and the ControllerRevisions.
	RevisionNamespace string
	// ExcludedNamespaces are those whose Pods are never injected.
	ExcludedNamespaces []string
	// Rival returns another injector that is live; nil if there is none.
	Rival func() *rival.Injector
	// Widener makes API servers call us for what a SidecarSet selects while it is
	// being admitted; nil where the leader alone does, after it is stored.
	Widener sidecarsets.Widener
	// Replica is the name by which this process tells the leader what it knows,
	// unique among all processes. It does so once it is ready: when the checks of
	// Ready, and those of what is set up here, say so.
	Replica string
	Ready   []healthz.Checker
	// AddReadiness adds a readiness check.
	AddReadiness func(name string, check healthz.Checker)
	// RequesterCheck says what happens to SidecarSets whose author lacks rights.
	RequesterCheck sidecarsets.RequesterMode
	// PatchPodMetadataAllowed lets SidecarSets set any annotation where no whitelist
	// says which.
	PatchPodMetadataAllowed bool
}

// Setup serves all webhooks on s, and adds the server and its readiness to
// the manager. leave has the leader not wait for this process any more; it is for
// one that ends without its manager.
func Setup(mgr ctrl.Manager, s *server.Server, o Options) (leave func(context.Context) error, err error) {
	live := mgr.GetAPIReader()
	instrumented := server.Instrumented(metrics.Registry)

	s.Instrument(metrics.Registry)
	fresh := newFreshness(live, o.Catalog, o.Timeline)
	publisher := newPublisher(mgr, s, o, fresh.ensure)
	injector := pods.NewInjector(pods.Options{
		Snapshot:           o.Catalog.Current,
		CatchUp:            fresh.ensure,
		Trusted:            func() bool { return !publisher.Doubt() },
		Namespaces:         live,
		ExcludedNamespaces: o.ExcludedNamespaces,
		Rival:              o.Rival,
		Registry:           metrics.Registry,
	})
	s.RegisterIn(server.GroupPods, PathPods, injector)
	s.RegisterIn(server.GroupPods, PathPodsFresh, injector.Fresh())
	s.RegisterIn(server.GroupBarriers, propagation.PathBarrier, http.HandlerFunc(answerBarrier))
	minor, err := sidecarsets.ServerMinor(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, err
	}
	bound := sidecarsets.NewValueBound()
	s.Register(PathDefault, instrumented(PathDefault, bound.Before(sidecarsets.NewDefaulter())))
	s.Register(PathValidate, instrumented(PathValidate, bound.Before(sidecarsets.NewValidator(sidecarsets.ValidatorOptions{
		Stored: func(ctx context.Context) (*match.Snapshot, error) {
			err := fresh.ensure(ctx)
			return o.Catalog.Current(), err
		},
		Reader:                  live,
		ServerMinor:             minor,
		Namespace:               o.RevisionNamespace,
		PatchPodMetadataAllowed: o.PatchPodMetadataAllowed,
		ExcludedNamespaces:      o.ExcludedNamespaces,
		Widener:                 o.Widener,
		Requester: sidecarsets.NewRequesterCheck(sidecarsets.RequesterCheckOptions{
			Mode:               o.RequesterCheck,
			Catalog:            o.Catalog.Current,
			Access:             sidecarsets.NewCachedAccess(mgr.GetClient(), nil),
			Revisions:          sidecarsets.RecordedRevisions{Reader: live, Namespace: o.RevisionNamespace},
			ExcludedNamespaces: o.ExcludedNamespaces,
			Registry:           metrics.Registry,
		}),
	}))))
	convert := conversion.NewHandler(mgr.GetLogger().WithName("convert"))
	s.RegisterIn(server.GroupConversions, PathConvert, instrumented(PathConvert, convert))

	if err := mgr.Add(s); err != nil {
		return nil, fmt.Errorf("adding the webhook server: %w", err)
	}
	if err := mgr.Add(publisher); err != nil {
		return nil, fmt.Errorf("adding the publisher: %w", err)
	}
	for name, check := range map[string]healthz.Checker{"webhook": s.Ready, "webhook-listener": s.StartedChecker()} {
		o.AddReadiness(name, check)
	}
	return publisher.Leave, nil
}

// newPublisher returns what tells the leader that this replica answers Pods.
func newPublisher(mgr ctrl.Manager, s *server.Server, o Options, catchUp func(context.Context) error) *Publisher {
	changed := make(chan struct{}, 1)
	o.Catalog.Notify(changed)
	return NewPublisher(PublisherOptions{
		Name:      o.Replica,
		Namespace: o.Namespace,
		Writer:    mgr.GetClient(),
		Observed:  o.Catalog.Observed,
		Changed:   changed,
		Ready:     append(slices.Clone(o.Ready), o.Catalog.Ready, s.Ready, s.StartedChecker()),
		CatchUp:   catchUp,
		Registry:  metrics.Registry,
	})
}
