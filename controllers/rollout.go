package controllers

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/controllers/executor"
	"github.com/sidecarset/operator/internal/tally"
)

// addExecutor adds the executor, which updates running Pods, to a manager.
func addExecutor(mgr ctrl.Manager, pods *podTally, o Options) error {
	config := rest.CopyConfig(mgr.GetConfig())
	config.QPS = -1 // the executor has a limit of its own
	core, err := corev1client.NewForConfigAndClient(config, mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("making a client for updates of Pods: %w", err)
	}
	e := executor.New(executor.Options{
		Tally: func(ctx context.Context, use func(*tally.Tally)) error {
			return pods.ask(ctx, func(t *tally.Tally) {
				if pods.synced {
					use(t)
				}
			})
		},
		Current: pods.sets.Current, Pods: core, Nodes: core,
		Revision: func(ctx context.Context, name string) (*appsv1.ControllerRevision, error) {
			recorded := &appsv1.ControllerRevision{}
			return recorded, mgr.GetCache().Get(ctx, client.ObjectKey{Namespace: o.RevisionNamespace, Name: name}, recorded)
		},
		RecordEvent: o.RecordPodEvent,
		QPS:         o.RolloutQPS, Leadership: o.Leadership, Registry: o.Registry,
	})
	pods.dueChanged = e.Wake
	return mgr.Add(e)
}
