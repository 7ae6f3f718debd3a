package restart

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/podstate"
)

// try evicts one Pod, and waits until its replacement is proven.
func (j *job) try(ctx context.Context) error {
	old, err := j.known(ctx)
	if err != nil {
		return err
	}
	victim, err := j.evict(ctx)
	if err != nil || victim == nil {
		return err
	}
	j.say("evicted Pod %s; waiting for its replacement", victim.Name)
	var found *corev1.Pod
	err = j.poll(ctx, often, func() (bool, string, error) {
		pods, err := j.pods(ctx)
		if err != nil {
			return false, "", err
		}
		at := slices.IndexFunc(pods, func(pod *corev1.Pod) bool {
			return !old[pod.UID] && j.inPlaceOf(victim, pod) && (found == nil || found.UID == pod.UID)
		})
		if at < 0 {
			found = nil // it was deleted; another one may come
			return false, "", nil
		}
		found = pods[at]
		switch how, why := j.watch.look(found, time.Now()); how {
		case proven:
			j.tried = true
			j.say("Pod %s, in place of %s, carries the current content and was Ready for %s", found.Name, victim.Name, j.MinReady)
			return true, "", nil
		case failed:
			return false, "", j.failed(fmt.Sprintf("Pod %s, in place of %s, %s", found.Name, victim.Name, why))
		default:
			j.say("Pod %s %s", found.Name, why)
			return false, string(found.UID), nil
		}
	})
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted after Pod %s was evicted; run the command again to go on", victim.Name)
	}
	if text, is := errors.AsType[slow](err); is {
		return j.failed(string(text))
	}
	return err
}

// failed is the error of a workload of which one Pod was tried.
func (j *job) failed(why string) error {
	return errors.New(why + ". No Pod of it was replaced after that" + j.goOn())
}

// inPlaceOf reports whether a new Pod of the workload replaces one that was evicted.
func (j *job) inPlaceOf(victim, pod *corev1.Pod) bool {
	switch j.w.Kind {
	case "StatefulSet":
		return pod.Name == victim.Name
	case "DaemonSet":
		return pod.Spec.NodeName == victim.Spec.NodeName
	}
	return true
}

// evict evicts one of the Pods that need to be replaced, and returns it; nil if there is none any
// more. Of those that are Ready the newest is tried, and if a budget refuses it, one that is not
// Ready: that one costs nothing.
func (j *job) evict(all context.Context) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(all, budgetPatience)
	defer cancel()
	refused := errors.New("no Pod could be evicted")
	for {
		todo, err := j.needing(ctx)
		if len(todo) == 0 && err == nil {
			return nil, nil
		}
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
		candidates := candidatesOf(todo)
		if len(candidates) == 0 && err == nil {
			return nil, passedOver(fmt.Sprintf("annotations of its Pods, such as %s, forbid to evict any of them", todo[0].Name))
		}
		for _, pod := range candidates {
			err := j.Client.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{
				ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
				DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}},
			})
			switch {
			case err == nil:
				return pod, nil
			case apierrors.IsNotFound(err), ctx.Err() != nil:
			case apierrors.IsTooManyRequests(err), apierrors.IsInternalError(err), apierrors.IsConflict(err), apierrors.IsServerTimeout(err): // 500: two budgets select it
				refused = fmt.Errorf("Pod %s cannot be evicted: %w", pod.Name, err)
				j.say("trying for %s: %v", budgetPatience, refused)
			default:
				return nil, passedOver(fmt.Sprintf("Pod %s cannot be evicted: %v", pod.Name, err))
			}
		}
		if sleep(ctx, seldom) == nil {
			continue
		}
		if all.Err() != nil {
			return nil, all.Err()
		}
		return nil, passedOver(fmt.Sprintf("%v (for %s)", refused, budgetPatience))
	}
}

// candidatesOf are the Pods that may be tried: the first that is Ready and the first that is not.
func candidatesOf(todo []*corev1.Pod) (candidates []*corev1.Pod) {
	for _, ready := range []bool{true, false} {
		at := slices.IndexFunc(todo, func(pod *corev1.Pod) bool { return !isProtected(pod) && podstate.IsPodReady(pod) == ready })
		if at >= 0 {
			candidates = append(candidates, todo[at])
		}
	}
	return candidates
}

// workloadSpec is what the kinds of workloads have in common.
type workloadSpec struct {
	selector *metav1.LabelSelector
	template *corev1.PodTemplateSpec
}

func specOf(object client.Object) *workloadSpec {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return &workloadSpec{o.Spec.Selector, &o.Spec.Template}
	case *appsv1.StatefulSet:
		return &workloadSpec{o.Spec.Selector, &o.Spec.Template}
	case *appsv1.DaemonSet:
		return &workloadSpec{o.Spec.Selector, &o.Spec.Template}
	}
	return nil
}

// graceOf is the grace period of a workload's Pods.
func graceOf(object client.Object) time.Duration {
	if spec := specOf(object); spec != nil && spec.template.Spec.TerminationGracePeriodSeconds != nil {
		return time.Duration(*spec.template.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}
