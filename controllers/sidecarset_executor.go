package controllers

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/controllers/executor"
	"github.com/sidecarset/operator/internal/tracker"
)

// addExecutor adds the executor, which updates running Pods, to a manager. It returns what has Pods
// written.
func addExecutor(mgr ctrl.Manager, pods *podTracker, o Options) (write func(...tracker.WorkItem), err error) {
	config := rest.CopyConfig(mgr.GetConfig())
	config.QPS = -1 // the executor has a limit of its own
	core, err := corev1client.NewForConfigAndClient(config, mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("making a client for updates of Pods: %w", err)
	}
	e := executor.New(executor.Options{
		Done: func(ctx context.Context, item tracker.WorkItem, result tracker.Result) {
			_ = pods.do(ctx, func(t *tracker.Tracker) { t.Done(item, result) }) // it fails when the leader ends
		},
		Current: pods.sets.Current, Pods: core,
		Revision: func(ctx context.Context, name string) (*appsv1.ControllerRevision, error) {
			recorded := &appsv1.ControllerRevision{}
			return recorded, mgr.GetCache().Get(ctx, client.ObjectKey{Namespace: o.RevisionNamespace, Name: name}, recorded)
		},
		Generation: func(ctx context.Context, name string) (int64, error) {
			sets := &metav1.PartialObjectMetadataList{}
			sets.SetGroupVersionKind(appsv1beta1.Kind)
			err := mgr.GetAPIReader().List(ctx, sets, client.MatchingFields{"metadata.name": name}) // a right that the leader has
			if err != nil || len(sets.Items) == 0 {
				return 0, err
			}
			return sets.Items[0].Generation, nil
		},
		RecordEvent: o.RecordPodEvent,
		QPS:         o.RolloutQPS, Leadership: o.Leadership, Registry: o.Registry,
	})
	return e.Write, mgr.Add(e)
}
