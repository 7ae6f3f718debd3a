package executor

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

// The right to create pods/eviction is not in the generated roles: the administrator grants it
// with config/recreate.

const (
	// budgetWait and maxBudgetWait are the minimum and maximum delay before an eviction
	// is retried that a PodDisruptionBudget refused.
	budgetWait, maxBudgetWait = 2 * time.Second, 5 * time.Minute
	// maxProtected is the largest number of controllers whose refusals are remembered.
	maxProtected = 10_000
)

const (
	evicted   result = "evicted"
	protected result = "protected" // by a PodDisruptionBudget
)

// evict asks the API server to evict one Pod, if it still may be evicted.
func (e *Executor) evict(ctx context.Context, due tally.Due, take rollout.Take) outcome {
	v := eviction{update{Executor: e, program: due.Program, contents: due.Contents, take: take, live: true}, due.Since}
	for range attempts {
		if o, done := v.attempt(ctx, v.follow); done {
			return o
		}
		if v.unsure != nil {
			return v.last(ctx)
		}
	}
	return isStale("other writers were faster %d times", attempts)
}

// eviction is the eviction of one Pod. Each read is live.
type eviction struct {
	update
	since int64
}

// follow evicts the Pod that was read. It returns done false if the result is unknown,
// or if the Pod has to be read again.
func (v *eviction) follow(ctx context.Context, pod *corev1.Pod) (o outcome, done bool) {
	if pod.UID != v.take.UID {
		return isStale("another Pod has its name"), true
	}
	may, err := v.judge(ctx, pod)
	switch {
	case err != nil:
		return hasFailed(err), true
	case !may:
		return isStale("the Pod does not have to be evicted, or must not be"), true
	}
	err = v.send(ctx, func(ctx context.Context) error {
		return v.Pods.Pods(pod.Namespace).EvictV1(ctx, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			DeleteOptions: &metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion},
			},
		})
	})
	switch {
	case err == nil:
		v.patience.end(pod)
		return outcome{result: evicted}, true
	case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
		return outcome{result: protected, reason: recreate.DisruptionBudget, message: bounded(err), wait: v.patience.next(pod, time.Now())}, true
	case apierrors.IsForbidden(err):
		return isRefused(recreate.EvictionRefused, refusalWait, fmt.Errorf("without config/recreate, the operator may not evict Pods: %w", err)), true
	case apierrors.IsInternalError(err): // such as two PodDisruptionBudgets for one Pod
		return isRefused(recreate.EvictionRefused, refusalWait, err), true
	}
	return v.notWritten(err, recreate.EvictionRefused)
}

// judge decides about the Pod as it is now.
func (v *eviction) judge(ctx context.Context, pod *corev1.Pod) (may bool, err error) {
	stuck := false
	if v.look(pod); v.now.Matched && (v.now.Way == inplace.Images || v.now.Way == inplace.Resize) {
		in, err := v.gather(ctx, pod)
		if err != nil {
			return false, err
		}
		next, err := inject.UpdateInPlace(in)
		if stuck = err == nil && v.isStuck(next); !stuck {
			return false, v.Tally(ctx, func(t *tally.Tally) { t.SetStuck(v.program, v.take, "") })
		}
	}
	return tally.MayEvict(v.program, v.contents, v.since, v.take, v.record, stuck), nil
}

// last reads a Pod once more if it is unknown whether it was evicted. If it is gone or is
// being deleted, it does not matter which client did that.
func (v *eviction) last(ctx context.Context) outcome {
	pod, err := v.read(ctx, v.take.Namespace.Value(), v.take.Name, true)
	if apierrors.IsNotFound(err) || err == nil && (pod.UID != v.take.UID || pod.DeletionTimestamp != nil) {
		return outcome{result: evicted}
	}
	return hasFailed(v.unsure)
}

// patience remembers since when PodDisruptionBudgets have refused the Pods of a
// controller. It is safe for concurrent use.
type patience struct{ since *lru.Cache }

func newPatience() *patience { return &patience{lru.New(maxProtected)} }

// next returns the retry delay of a Pod: the time since the first refusal for its
// controller, between budgetWait and maxBudgetWait.
func (p *patience) next(pod *corev1.Pod, now time.Time) time.Duration {
	controller := controllerOf(pod)
	since, refused := p.since.Get(controller)
	if !refused {
		p.since.Add(controller, now)
		return budgetWait
	}
	return min(max(now.Sub(since.(time.Time)), budgetWait), maxBudgetWait)
}

// end forgets the refusals for the controller of a Pod that was evicted.
func (p *patience) end(pod *corev1.Pod) {
	p.since.Remove(controllerOf(pod))
}

func controllerOf(pod *corev1.Pod) types.UID {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return owner.UID
	}
	return ""
}
