package webhooks

import (
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// The paths that config/webhook and config/crd name.
const (
	PathPods               = "/pods"
	PathDefaultSidecarSet  = "/mutate-apps-kruise-io-sidecarset"
	PathValidateSidecarSet = "/validate-apps-kruise-io-sidecarset"
	PathConvert            = "/convert"
)

// Options say what the webhooks need to know of the installation.
type Options struct {
	// Catalog decides about Pods. It runs on every replica; whoever made it adds
	// it to the manager.
	Catalog *Catalog
	// Namespace holds the ConfigMap that says which annotations SidecarSets may set.
	Namespace string
	// ExcludedNamespaces are those whose Pods are never injected.
	ExcludedNamespaces []string
}

// Setup serves all webhooks on server, which the manager has to run, and adds
// its readiness to the manager's.
func Setup(mgr ctrl.Manager, server *Server, o Options) error {
	live := mgr.GetAPIReader()

	server.Register(PathPods, NewPodInjector(PodInjectorOptions{
		Catalog:            o.Catalog.Current,
		Namespaces:         live,
		ExcludedNamespaces: o.ExcludedNamespaces,
		Registry:           metrics.Registry,
	}))
	server.Register(PathDefaultSidecarSet, NewSidecarSetDefaulter())
	server.Register(PathValidateSidecarSet, NewSidecarSetValidator(SidecarSetValidatorOptions{
		Reader:             live,
		Namespace:          o.Namespace,
		ExcludedNamespaces: o.ExcludedNamespaces,
	}))
	server.RegisterBounded(PathConvert, NewConversionHandler(mgr.GetLogger().WithName("convert")), MaxConversionBytes)

	if err := mgr.AddReadyzCheck("webhook", server.Ready); err != nil {
		return fmt.Errorf("adding the webhook server's readiness: %w", err)
	}
	return nil
}
