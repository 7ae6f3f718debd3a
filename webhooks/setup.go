package webhooks

import (
	"context"
	"errors"
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/sidecarset/operator/internal/entry"
	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/injectors"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/conversion"
	"github.com/sidecarset/operator/webhooks/entries"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
	"github.com/sidecarset/operator/webhooks/sidecarsets"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// The paths that config/webhook and config/crd name.
const (
	PathDefault  = "/mutate-apps-kruise-io-sidecarset"
	PathValidate = "/validate-apps-kruise-io-sidecarset"
	PathConvert  = "/convert"
)

// Options are the facts about the installation that the webhooks need.
type Options struct {
	// Catalog decides about Pods. It runs on every replica. The caller adds it to the
	// manager.
	Catalog *snapshot.Catalog
	// Knowledge knows what a call requires the Catalog to hold.
	Knowledge *entries.Knowledge
	// Namespace is the operator's own. There the API server is asked about containers.
	Namespace string
	// RevisionNamespace holds the ConfigMap that says which annotations SidecarSets
	// may set, and the ControllerRevisions.
	RevisionNamespace string
	// ExcludedNamespaces are the Namespaces whose Pods are never injected.
	ExcludedNamespaces []string
	// OtherInjector returns another injector that is live; nil if there is none.
	OtherInjector func() *injectors.Injector
	// RecordEvent writes an Event about a Pod that was refused. It does not wait.
	RecordEvent func(events.Event)
	// Widener makes API servers call us for the Pods of a SidecarSet that is being
	// admitted; nil if only the leader does this, after the SidecarSet is stored.
	Widener sidecarsets.Widener
	// AddReadiness adds a readiness check.
	AddReadiness func(name string, check healthz.Checker)
	// RequesterCheck says what happens to SidecarSets whose author lacks rights.
	RequesterCheck sidecarsets.RequesterMode
	// PatchPodMetadataAllowed lets a SidecarSet set any annotation if the whitelist has
	// no rule about that SidecarSet.
	PatchPodMetadataAllowed bool
}

// Setup serves all webhooks on s, and adds the server and its readiness to
// the manager.
func Setup(mgr ctrl.Manager, s *server.Server, o Options) error {
	live := mgr.GetAPIReader()

	s.Instrument(metrics.Registry)
	recorded := snapshot.RecordedRevisions{Reader: live, Namespace: o.RevisionNamespace}
	injector := pods.NewInjector(pods.Options{
		Snapshot:           o.Catalog.Current,
		Ensure:             o.Knowledge.Ensure,
		Know:               o.Knowledge.Know,
		Namespaces:         live,
		Revision:           recorded.Named,
		Client:             server.ClientOf,
		ExcludedNamespaces: o.ExcludedNamespaces,
		OtherInjector:      o.OtherInjector,
		RecordEvent:        o.RecordEvent,
		Registry:           metrics.Registry,
	})
	s.Register(server.GroupPods, entry.PathPods, injector.Handle)
	s.Register(server.GroupPods, entry.PathSlots, injector.Handle)
	s.Register(server.GroupBarriers, entry.PathBarrier, entries.AnswerBarrier)
	content, err := sidecarsets.NewContentCheck(mgr.GetConfig(), mgr.GetHTTPClient(), o.Namespace, metrics.Registry)
	if err != nil {
		return err
	}
	bound := sidecarsets.NewValueBound()
	s.Register(server.GroupSidecarSets, PathDefault, bound.Before(sidecarsets.NewDefaulter()))
	s.Register(server.GroupSidecarSets, PathValidate, bound.Before(sidecarsets.NewValidator(sidecarsets.ValidatorOptions{
		Stored: func(context.Context) (*match.Snapshot, error) {
			if known := o.Catalog.Current(); known != nil {
				return known, nil
			}
			return nil, errors.New("this replica of the operator has not read all SidecarSets yet")
		},
		Current:                 o.Catalog.Current,
		Reader:                  live,
		Content:                 content,
		Namespace:               o.RevisionNamespace,
		PatchPodMetadataAllowed: o.PatchPodMetadataAllowed,
		ExcludedNamespaces:      o.ExcludedNamespaces,
		Widener:                 o.Widener,
		Requester: sidecarsets.NewRequesterCheck(sidecarsets.RequesterCheckOptions{
			Mode:               o.RequesterCheck,
			Catalog:            o.Catalog.Current,
			Access:             sidecarsets.NewCachedAccess(mgr.GetClient()),
			Revisions:          recorded,
			ExcludedNamespaces: o.ExcludedNamespaces,
			Registry:           metrics.Registry,
		}),
	})))
	s.Register(server.GroupConversions, PathConvert, conversion.Handle)

	if err := mgr.Add(s); err != nil {
		return fmt.Errorf("adding the webhook server: %w", err)
	}
	o.AddReadiness("webhook", s.Ready)
	return nil
}
