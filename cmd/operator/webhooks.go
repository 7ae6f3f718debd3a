package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/webhooks/conversion"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/registration"
	"github.com/sidecarset/operator/webhooks/server"
	"github.com/sidecarset/operator/webhooks/sidecarsets"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// The paths that config/webhook and config/crd name.
const (
	pathDefault  = "/mutate-apps-kruise-io-sidecarset"
	pathValidate = "/validate-apps-kruise-io-sidecarset"
	pathConvert  = "/convert"
)

// addWebhooks serves all webhooks on s, and adds the server and its readiness to the manager.
func (p *parts) addWebhooks(s *server.Server) error {
	o, live := p.options, p.mgr.GetAPIReader()
	conflicts := newEventWriter(p.mgr.GetEventRecorder(eventSource), events.ReviewLimits)
	if err := p.mgr.Add(conflicts); err != nil {
		return err
	}
	s.Instrument(metrics.Registry)
	recorded := snapshot.RecordedRevisions{Reader: live, Namespace: o.revisionNamespace}
	content, err := sidecarsets.NewTemplateCheck(p.mgr.GetConfig(), p.mgr.GetHTTPClient(), o.namespace, metrics.Registry)
	if err != nil {
		return err
	}
	injector := pods.NewInjector(pods.Options{
		Snapshot:           p.store.Current,
		Ensure:             p.freshness.Ensure,
		Know:               p.freshness.Check,
		Namespaces:         live,
		Revision:           recorded.Referred,
		KeepsPodResources:  content.KeepsPodResources,
		ExcludedNamespaces: o.excludedNamespaces,
		OtherInjector:      p.injectors.Injector,
		RecordEvent:        conflicts.RecordEvent,
		Registry:           metrics.Registry,
	})
	s.Register(server.GroupPods, podwebhook.PathPods, injector.Handle)
	s.Register(server.GroupPods, podwebhook.PathShards, injector.Handle)
	s.Register(server.GroupProbes, podwebhook.PathProbe, registration.AnswerProbe)
	validation := sidecarsets.ValidatorOptions{
		Stored: func(context.Context) (*match.Snapshot, error) {
			if known := p.store.Current(); known != nil {
				return known, nil
			}
			return nil, errors.New("this replica of the operator has not read all SidecarSets yet")
		},
		Current:                 p.store.Current,
		Reader:                  live,
		Template:                content,
		Namespace:               o.revisionNamespace,
		PatchPodMetadataAllowed: o.patchPodMetadataAllowed,
		ExcludedNamespaces:      o.excludedNamespaces,
		Requester: sidecarsets.NewRequesterCheck(sidecarsets.RequesterCheckOptions{
			Mode:               o.requesterCheck,
			Store:              p.store.Current,
			Access:             sidecarsets.NewCachedAccess(p.mgr.GetClient()),
			Revisions:          recorded,
			ExcludedNamespaces: o.excludedNamespaces,
			Registry:           metrics.Registry,
		}),
	}
	// A process that may not write webhooks leaves them to the leader.
	if p.registrar != nil && o.podWebhook.mode == podWebhookExact {
		validation.Registrar = p.registrar
	}
	bound := sidecarsets.NewValueBound()
	s.Register(server.GroupSidecarSets, pathDefault, bound.Before(sidecarsets.NewDefaulter()))
	s.Register(server.GroupSidecarSets, pathValidate, bound.Before(sidecarsets.NewValidator(validation)))
	s.Register(server.GroupConversions, pathConvert, conversion.Handle)
	if err := p.mgr.Add(s); err != nil {
		return fmt.Errorf("adding the webhook server: %w", err)
	}
	p.probes.AddReadiness("webhook", s.Ready)
	p.probes.AddReadiness("certificate", func(*http.Request) error { return p.serving.Source.Ready() })
	return nil
}
