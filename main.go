// Command sidecarset-operator says which sidecars go into which Pods, and puts
// them there while the Pods are being created. This file reads flags and wires
// the parts; what they do is in webhooks, controllers and certs, and what they
// decide is in internal/.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/controllers"
	"github.com/sidecarset/operator/webhooks"
)

// version is set by the build.
var version = "dev"

// scheme holds the few types that are used as Go structs. SidecarSets are read
// as unstructured objects.
var scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(appsv1beta1.AddToScheme(scheme))
}

// The objects of config/ that the operator writes its CA bundle into.
const (
	mutatingConfiguration   = "sidecarset-mutating-webhook"
	validatingConfiguration = "sidecarset-validating-webhook"
)

func main() {
	o, err := parseOptions(os.Args[1:], os.Getenv)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sidecarset-operator:", err)
		os.Exit(2)
	}
	logger := zap.New(zap.UseFlagOptions(&o.logging))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)

	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		logger.Error(err, "Stopped")
		os.Exit(1)
	}
}

// run wires the parts for the role and blocks until ctx ends or one of them fails.
func run(ctx context.Context, o options) error {
	config, err := restConfig()
	if err != nil {
		return fmt.Errorf("loading the client configuration: %w", err)
	}
	ctrl.Log.Info("Starting", "version", version, "role", o.role, "namespace", o.namespace)

	live, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	published := certs.NewPublished(live,
		certs.MutatingWebhooks(mutatingConfiguration),
		certs.ValidatingWebhooks(validatingConfiguration),
		certs.ConversionWebhook(appsv1beta1.Resource.GroupResource().String()))
	source, err := certs.NewSelfManaged(live, published, o.certificates())
	if err != nil {
		return err
	}
	watches := webhooks.NewWatchHealth(nil, 0)
	server := webhooks.NewServer(o.server(source, ctx.Done()))

	mgr, err := ctrl.NewManager(config, o.manager(source, server, watches))
	if err != nil {
		return fmt.Errorf("making the manager: %w", err)
	}
	catalog, err := webhooks.NewCatalog(ctx, mgr.GetCache(), webhooks.CatalogOptions{Registry: metrics.Registry})
	if err != nil {
		return err
	}
	if err := mgr.Add(catalog); err != nil {
		return err
	}
	if err := addCertificates(mgr, o, live, source, published); err != nil {
		return err
	}
	if o.answersWebhooks() {
		if err := addWebhooks(mgr, o, server, catalog, watches); err != nil {
			return err
		}
		ready := certs.NewReadiness(source, published, o.serverName(), nil)
		if err := mgr.AddReadyzCheck("certificate", ready.Check); err != nil {
			return err
		}
	}
	if o.runsControllers() {
		if err := controllers.Setup(mgr, catalog, controllers.Options{ExcludedNamespaces: o.excludedNamespaces}); err != nil {
			return err
		}
	}
	for name, check := range map[string]healthz.Checker{"catalog": catalog.Ready, "watches": watches.Ready} {
		if err := mgr.AddReadyzCheck(name, check); err != nil {
			return err
		}
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// addCertificates lets every replica that serves keep its leaf, and the leader
// look after the CA and the bundles.
func addCertificates(mgr ctrl.Manager, o options, live client.Client, source *certs.SelfManaged, published *certs.Published) error {
	if err := mgr.Add(published); err != nil {
		return err
	}
	if err := mgr.Add(source); err != nil {
		return err
	}
	if !o.runsControllers() {
		return nil
	}
	if err := mgr.Add(source.Rotator()); err != nil {
		return err
	}
	return mgr.Add(certs.NewBundlePublisher(live, source, published, nil))
}

func addWebhooks(mgr ctrl.Manager, o options, server *webhooks.Server, catalog *webhooks.Catalog, watches *webhooks.WatchHealth) error {
	return webhooks.Setup(mgr, server, webhooks.Options{
		Catalog:            catalog,
		Namespace:          o.namespace,
		ExcludedNamespaces: o.excludedNamespaces,
	})
}
