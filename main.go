// Command sidecarset-operator says which sidecars go into which Pods, and puts
// them there while the Pods are being created. This file reads flags and wires
// the parts; what they do is in webhooks, controllers and certs, and what they
// decide is in internal/.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/controllers"
	"github.com/sidecarset/operator/internal/entries"
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
	logger := zap.New(zap.UseFlagOptions(&o.logging), zap.RawZapOpts(filterLog()))
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

	// The servers exist before the certificate does, and ask for it when they are called.
	var serving *certs.Serving
	certificate := func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		return serving.Source.GetCertificate(hello)
	}
	watches := webhooks.NewWatchHealth(nil, 0)
	server := webhooks.NewServer(o.server(certificate, ctx.Done()))

	mgr, err := ctrl.NewManager(config, o.manager(certificate, watches))
	if err != nil {
		return fmt.Errorf("making the manager: %w", err)
	}
	catalog := webhooks.NewCatalog(mgr.GetCache(), webhooks.CatalogOptions{Registry: metrics.Registry})
	if err := mgr.Add(catalog); err != nil {
		return err
	}
	serving, err = certs.Setup(mgr, o.serverName(), o.certificates(), bundleTargets()...)
	if err != nil {
		return err
	}
	rivals, err := controllers.NewRivals(mgr.GetConfig(), mgr.GetHTTPClient(), o.namespace, metrics.Registry)
	if err != nil {
		return err
	}
	if err := mgr.Add(rivals); err != nil {
		return err
	}
	if o.answersWebhooks() {
		err := webhooks.Setup(mgr, server, webhooks.Options{Catalog: catalog, Namespace: o.revisionNamespace, ExcludedNamespaces: o.excludedNamespaces, RequesterCheck: o.requesterCheck, Rival: rivals.Injector})
		if err != nil {
			return err
		}
		if err := addReadiness(mgr, "certificate", serving.Readiness.Check); err != nil {
			return err
		}
	}
	if o.runsControllers() {
		if err := serving.SetupLeader(mgr); err != nil {
			return err
		}
		if err := controllers.Setup(mgr, catalog, controllers.Options{ExcludedNamespaces: o.excludedNamespaces, RevisionNamespace: o.revisionNamespace}); err != nil {
			return err
		}
	}
	for name, check := range map[string]healthz.Checker{"catalog": catalog.Ready, "watches": watches.Ready} {
		if err := addReadiness(mgr, name, check); err != nil {
			return err
		}
	}
	if err := mgr.Add(onEveryReplica(boundGarbage)); err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// bundleTargets are the objects that tell API servers whom to trust. Those of the Pod webhook exist only while they hold entries.
func bundleTargets() []certs.Target {
	targets := []certs.Target{
		certs.MutatingWebhooks(mutatingConfiguration),
		certs.ValidatingWebhooks(validatingConfiguration),
		certs.ConversionWebhook(appsv1beta1.Resource.GroupResource().String()),
	}
	for i := range entries.MaxConfigurations {
		targets = append(targets, certs.MutatingWebhooks(entries.ConfigurationName(i)).Optional())
	}
	return targets
}

// onEveryReplica runs, whoever leads.
type onEveryReplica func(context.Context) error

func (f onEveryReplica) Start(ctx context.Context) error { return f(ctx) }

func (onEveryReplica) NeedLeaderElection() bool { return false }

// addReadiness adds a readiness check and logs its answer whenever it changes:
// the probe's own answer keeps reasons to itself.
func addReadiness(mgr ctrl.Manager, name string, check healthz.Checker) error {
	var mu sync.Mutex
	last := "not asked yet"
	return mgr.AddReadyzCheck(name, func(r *http.Request) error {
		err := check(r)
		answer := ""
		if err != nil {
			answer = err.Error()
		}
		mu.Lock()
		defer mu.Unlock()
		if answer != last {
			ctrl.Log.WithName("readiness").Info("Readiness changed", "check", name, "ready", err == nil, "reason", answer)
			last = answer
		}
		return err
	})
}
