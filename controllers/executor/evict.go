package executor

import (
	"context"
	"fmt"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

// The right to create pods/eviction is not in the generated roles: the administrator grants it
// with config/recreate.

// evict asks the API server to evict one Pod, if it still may be evicted. Each read is live.
func (e *Executor) evict(ctx context.Context, due tally.Due, take rollout.Take) rollout.Result {
	a := &attempt{due: due, take: take, live: true}
	return e.try(ctx, a, recreate.EvictionRefused, func(ctx context.Context) (rollout.Result, error) { return e.askToEvict(ctx, a) })
}

// askToEvict evicts the Pod that was read. If it is unknown whether an earlier request was
// carried out, no other one is sent.
func (e *Executor) askToEvict(ctx context.Context, a *attempt) (rollout.Result, error) {
	pod := a.pod
	switch {
	case a.mayBeWritten() && pod.DeletionTimestamp != nil:
		return rollout.Result{Kind: rollout.Evicted}, nil
	case a.mayBeWritten():
		return failed(a.unsure), nil
	}
	stuck := false
	if a.take.Stuck {
		next, _, err := e.decide(ctx, a.due, pod)
		if err != nil {
			return failed(err), nil
		}
		stuck = e.isStuck(next)
	}
	if !tally.MayEvict(a.due, podstate.FromPod(pod), stuck, time.Now()) {
		return stale("the Pod does not have to be evicted, or must not be"), nil
	}
	err := e.send(ctx, func(ctx context.Context) error {
		return e.Pods.Pods(pod.Namespace).EvictV1(ctx, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			DeleteOptions: &metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion},
			},
		})
	})
	switch {
	case err == nil:
		return rollout.Result{Kind: rollout.Evicted}, nil
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		return rollout.Result{Kind: rollout.Protected, Reason: recreate.DisruptionBudget, Message: bounded(err.Error())}, nil
	case apierrors.IsForbidden(err):
		return refused(recreate.EvictionRefused, fmt.Errorf("without config/recreate, the operator may not evict Pods: %w", err)), nil
	case apierrors.IsInternalError(err): // such as two PodDisruptionBudgets for one Pod
		return refused(recreate.EvictionRefused, err), nil
	}
	return rollout.Result{}, err
}
