// Package operator is the process: its flags, and how they become parts. It knows
// which parts a role runs and how they depend on each other. What the parts do is
// in webhooks, controllers and certs, and what they decide is in internal/.
//
// To follow the start of a process: ParseOptions (options.go) reads the flags, and
// Run (this file) makes the parts and blocks until the process ends.
package operator

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/certs"
	"github.com/sidecarset/operator/controllers"
	"github.com/sidecarset/operator/controllers/executor"
	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/webhooks/registration"
	"github.com/sidecarset/operator/webhooks/server"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

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

// Run does what the role of the options says. It blocks until ctx ends or a part
// fails. It sets the process's logger, so call it once.
// version is the name of the build in logs and in requests to the API server.
func Run(ctx context.Context, version string, o Options) error {
	logger := zap.New(zap.UseFlagOptions(&o.logging), zap.RawZapOpts(filterLog()))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	config, err := restConfig(version)
	if err != nil {
		return fmt.Errorf("loading the client configuration: %w", err)
	}
	exposeVersion(metrics.Registry, version)
	ctrl.Log.Info("Starting", "version", version, "role", o.role, "namespace", o.namespace)

	health := snapshot.NewHealth(o.serverName())
	managing := o.manager()
	leadership, err := watchLease(config, &managing)
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, managing)
	if err != nil {
		return fmt.Errorf("making the manager: %w", err)
	}
	if leadership != nil {
		leadership.Record(mgr.GetEventRecorderFor(eventSource)) //nolint:staticcheck // client-go's lock writes Events of the old API
	}
	serving, err := certs.Setup(mgr, o.serverName(), o.certificates(), o.bundleTargets())
	if err != nil {
		return err
	}
	serverOptions, err := o.server(serving.Source.GetCertificate, ctx.Done())
	if err != nil {
		return err
	}
	webhookServer := server.New(serverOptions)
	probes, err := o.addPorts(ctx, mgr, serving.Source.GetCertificate)
	if err != nil {
		return err
	}
	store := snapshot.NewStore(mgr.GetCache(), metrics.Registry)
	shards := registration.NewShards(mgr.GetCache(), mgr.GetAPIReader())
	freshness := registration.NewFreshness(shards, store, health, mgr.GetAPIReader(), metrics.Registry)
	injectors := registration.NewInjectors(mgr.GetCache(), o.namespace, metrics.Registry)
	if err := addAll(mgr, shards, store, injectors); err != nil {
		return err
	}
	parts := &parts{mgr: mgr, options: o, store: store, serving: serving, injectors: injectors, probes: probes, shards: shards, freshness: freshness, leadership: leadership}
	if o.runsControllers() {
		if err := parts.addControllers(); err != nil {
			return err
		}
	}
	if o.answersWebhooks() {
		if err := parts.addWebhooks(webhookServer); err != nil {
			return err
		}
	}
	// A replica that cannot read SidecarSets because no replica converts them is ready, so that API servers call it.
	probes.AddReadiness("snapshot", func(r *http.Request) error {
		if err := store.Ready(r); err != nil && !health.Unconverted() {
			return err
		}
		return nil
	})
	probes.AddReadiness("injectors", injectors.Ready)
	running := ctx
	if o.answersWebhooks() {
		running = after(ctx, o.drainGrace)
	}
	stopped, restored := make(chan error, 1), make(chan error, 1)
	go func() { stopped <- mgr.Start(running) }()
	go func() {
		if err := health.Run(running, mgr.GetAPIReader()); err != nil {
			restored <- err
		}
	}()
	select {
	case err = <-stopped:
		if ctx.Err() == nil && o.answersWebhooks() { // it has lost its Lease, and its endpoints are not withdrawn yet
			select {
			case <-time.After(o.drainGrace):
			case <-ctx.Done():
			}
		}
		webhookServer.Close(ctx)
		return err
	case err = <-restored:
		// The snapshot is of a state that no longer exists: end without draining.
		return err
	}
}

// after returns a context that ends when the grace period has passed since the end
// of ctx. A manager stops its watches before its servers: without the delay, Pods
// that arrive while the server drains would wait for a snapshot that no watch
// updates.
func after(ctx context.Context, grace time.Duration) context.Context {
	later, end := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(grace, end) })
	return later
}

// parts are what the roles have in common.
type parts struct {
	mgr       ctrl.Manager
	options   Options
	store     *snapshot.Store
	serving   *certs.Serving
	injectors *registration.Injectors
	probes    *probes
	shards    *registration.Shards
	freshness *registration.Freshness
	registrar *registration.Registrar // nil where controllers do not run
	// leadership is nil if there is no election.
	leadership *executor.Leadership
}

func (p *parts) addControllers() error {
	o := p.options
	if err := addAll(p.mgr, p.serving.Leader...); err != nil {
		return err
	}
	states := newEventWriter(p.mgr.GetEventRecorder(eventSource), events.StateLimits)
	podEvents := newEventWriter(p.mgr.GetEventRecorder(eventSource), events.PodLimits)
	if err := addAll(p.mgr, states, podEvents); err != nil {
		return err
	}
	var err error
	if p.registrar, err = registration.Setup(p.mgr, p.shards, p.store, o.webhooks(p.serving, p.injectors)); err != nil {
		return err
	}
	return controllers.Setup(p.mgr, p.store, controllers.Options{
		ExcludedNamespaces: o.excludedNamespaces,
		RecordEvent:        states.RecordEvent,
		RecordPodEvent:     podEvents.RecordEvent,
		Readiness:          p.registrar.Readiness(),
		RevisionNamespace:  o.revisionNamespace,
		WatchPause:         &snapshot.WatchPause,
		RolloutQPS:         o.rolloutQPS,
		Leadership:         p.leadership,
		Registry:           metrics.Registry,
	})
}

func addAll(mgr ctrl.Manager, runnables ...manager.Runnable) error {
	for _, r := range runnables {
		if err := mgr.Add(r); err != nil {
			return err
		}
	}
	return nil
}

// bundleTargets are the objects that hold CA bundles for API servers. Objects with a
// Pod webhook do not count where an administrator maintains the webhook: the leader has
// no right to write what is left in these objects.
func (o Options) bundleTargets() certs.Targets {
	targets := certs.Targets{
		Mutating: mutatingConfiguration, Validating: validatingConfiguration, Definition: appsv1beta1.Resource.GroupResource().String(),
	}
	if o.podWebhook.mode != podWebhookStatic {
		targets.IsShard = func(name string) bool {
			_, ok := podwebhook.ShardNumber(name)
			return ok
		}
	}
	return targets
}
