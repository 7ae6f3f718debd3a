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
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

// addExecutor adds the executor, which updates running Pods, to a manager.
func addExecutor(mgr ctrl.Manager, pods *podTally, o Options) error {
	config := rest.CopyConfig(mgr.GetConfig())
	config.QPS = -1 // the executor has a limit of its own
	client, err := corev1client.NewForConfigAndClient(config, mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("making a client for updates of Pods: %w", err)
	}
	e := executor.New(executor.Options{
		Source: rollouts{pods}, Current: pods.sets.Current, Pods: client, Nodes: client,
		Revision:    revisionReader(mgr.GetCache(), o.RevisionNamespace),
		RecordEvent: o.RecordPodEvent,
		QPS:         o.RolloutQPS, Leadership: o.Leadership, Registry: o.Registry,
	})
	pods.dueChanged = e.Wake
	return mgr.Add(e)
}

// revisionReader reads ControllerRevisions of a namespace.
func revisionReader(cached client.Reader, namespace string) func(context.Context, string) (*appsv1.ControllerRevision, error) {
	return func(ctx context.Context, name string) (*appsv1.ControllerRevision, error) {
		recorded := &appsv1.ControllerRevision{}
		return recorded, cached.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, recorded)
	}
}

// rollouts gives the executor access to the tally.
type rollouts struct{ pods *podTally }

var _ executor.Source = rollouts{}

// Take returns the Pods that can be written now; none before the first list of Pods is
// complete.
func (r rollouts) Take(ctx context.Context, sidecarSet string, n int) (executor.Batch, error) {
	var batch executor.Batch
	err := r.pods.ask(ctx, func(t *tally.Tally) {
		if !r.pods.synced {
			return
		}
		due := t.Due(sidecarSet, n)
		batch.Program, batch.Contents, batch.Since, batch.Updates = due.Program, due.Contents, due.Since, due.Updates
		for _, chore := range due.Chores {
			batch.Chores = append(batch.Chores, executor.Chore{Name: nameOf(chore.Pod), FirstWord: chore.FirstWord, Over: chore.Over})
		}
	})
	return batch, err
}

// Do runs a function on the queue of a SidecarSet.
func (r rollouts) Do(ctx context.Context, sidecarSet string, f func(*rollout.Queue)) error {
	return r.pods.do(ctx, func(t *tally.Tally) { t.WithQueue(sidecarSet, f) })
}

// Evicted returns a Pod that was evicted to the queue.
func (r rollouts) Evicted(ctx context.Context, sidecarSet string, take rollout.Take) error {
	return r.pods.do(ctx, func(t *tally.Tally) { t.Evicted(sidecarSet, take) })
}

// NotEvicted reports that a Pod was not evicted.
func (r rollouts) NotEvicted(ctx context.Context, sidecarSet string, take rollout.Take) error {
	return r.pods.do(ctx, func(t *tally.Tally) { t.NotEvicted(sidecarSet, take) })
}

// SetStuck records why a Pod cannot be updated in place.
func (r rollouts) SetStuck(ctx context.Context, program *inject.Program, take rollout.Take, reason inplace.Reason) error {
	return r.pods.do(ctx, func(t *tally.Tally) { t.SetStuck(program, take, reason) })
}

// CheckChore makes a Pod that was taken as a chore available to Take again.
func (r rollouts) CheckChore(ctx context.Context, sidecarSet string, pod executor.Name) error {
	return r.pods.do(ctx, func(t *tally.Tally) { t.CheckChore(sidecarSet, podstate.MakeNamespace(pod.Namespace), pod.Name) })
}

// Overdue returns Pods that are in flight and have not been ready for some time.
func (r rollouts) Overdue(ctx context.Context, sidecarSet string, n int) ([]executor.Name, error) {
	var overdue []executor.Name
	err := r.pods.ask(ctx, func(t *tally.Tally) {
		for _, pod := range t.Overdue(sidecarSet, n) {
			overdue = append(overdue, nameOf(pod))
		}
	})
	return overdue, err
}

// Lost reports that the Node of a Pod is not ready or gone.
func (r rollouts) Lost(ctx context.Context, pod executor.Name) error {
	return r.pods.do(ctx, func(t *tally.Tally) { t.Lost(podstate.MakeNamespace(pod.Namespace), pod.Name, pod.UID) })
}

func nameOf(r *podstate.Record) executor.Name {
	return executor.Name{UID: r.UID, Namespace: r.Namespace.Value(), Name: r.Name}
}
