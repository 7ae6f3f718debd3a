package executor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=pods/resize,verbs=patch

// resizes knows whether the API server lacks the subresource resize. That is found
// out with one Pod, and again after refusalWait: the API server may be upgraded.
type resizes struct {
	mu    sync.Mutex
	until time.Time
}

var errNoResize = errors.New("the API server does not have pods/resize: Kubernetes has it since 1.33")

func (r *resizes) missing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Before(r.until)
}

func (r *resizes) isMissing() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until = time.Now().Add(refusalWait)
}

// resize does the next step of a resize: it records on the Pod what is about to be
// written, and then writes it. Both are one step if nothing fails. It then waits for
// the kubelet, without a place of the budget.
func (u *update) resize(ctx context.Context, pod *corev1.Pod, next inject.Update) (o outcome, done bool) {
	switch {
	case next.Record == nil && next.Patch == nil && u.now.Resize == inplace.ResizeUnanswered:
		return isRefused(inplace.ResizeSilent, refusalWait, fmt.Errorf("the kubelet of Node %s has not acted on the resize", pod.Spec.NodeName)), u.live
	case next.Record == nil && next.Patch == nil:
		return isStale("the kubelet has not acted on a resize"), u.live
	case u.resizes.missing():
		return noResize(), true
	case next.Record != nil && u.noted:
		return isRefused(inplace.WriteFailed, refusalWait, errors.New("the record of a resize does not stay on the Pod")), true
	case next.Record != nil:
		after, err := u.patch(ctx, pod, next.Record)
		if err != nil {
			return u.notWritten(err)
		}
		u.noted, u.live = true, true
		return u.follow(ctx, after)
	}
	after, err := u.patch(ctx, pod, next.Patch, "resize")
	switch {
	case err == nil:
		return outcome{result: written, version: versionOf(after)}, true
	case isNoSubresource(err):
		u.resizes.isMissing()
		return noResize(), true
	}
	return u.notWritten(err)
}

func noResize() outcome {
	o := isRefused(inplace.ResizeUnsupported, refusalWait, errNoResize)
	o.stuck = true
	return o
}

// isStuck reports whether only a new Pod can have the content. It was decided about the
// Pod as it is, of which the Pod watch shows less.
func (u *update) isStuck(next inject.Update) bool {
	writes := next.Record != nil || next.Patch != nil
	return next.Verdict.Way == inplace.Recreate || next.Verdict.Way == inplace.Resize && writes && u.resizes.missing()
}

// isNoSubresource tells an API server that does not know a subresource from one that
// does not know the Pod: the former does not answer with a Status.
func isNoSubresource(err error) bool {
	return apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err) && apierrors.IsUnexpectedServerError(err)
}

// blockedFor says why a Pod does not follow in place, by what was read of it.
func (u *update) blockedFor(pod *corev1.Pod, next inject.Update) outcome {
	reason := next.Verdict.Reason
	var o outcome
	switch {
	case u.now.Way != inplace.Resize:
		o = isRefused(reason, nodeWait, fmt.Errorf("Node %s", pod.Spec.NodeName))
	case next.Message != "":
		o = isRefused(reason, refusalWait, errors.New(next.Message))
	default:
		o = isRefused(reason, refusalWait, errors.New(explanations[reason]))
	}
	o.stuck = u.isStuck(next)
	return o
}

// explanations are for reasons about resources of which nothing else says more.
var explanations = map[inplace.Reason]string{
	inplace.ResourcesHeldElsewhere: "the sidecar has neither the resources of its revision nor the current ones",
	inplace.ImmutableFieldChanged:  "the resize would remove a value, or change the QoS class of the Pod",
	inplace.ResizeRestarts:         "the resizePolicy of the container asks for a restart",
}
