package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=pods/resize,verbs=patch

var errNoResize = errors.New("the API server does not have pods/resize, which Kubernetes has since 1.33")

// lacksResize reports whether the API server is known to lack the subresource resize.
func (e *Executor) lacksResize() bool {
	seen := e.resizeMissed.Load()
	return seen != nil && time.Since(*seen) < refusalWait
}

// resize does the next step of a resize: it records on the Pod the values that it is
// about to write, and then writes them, in one call if nothing fails. The Pod then
// waits for the kubelet and does not count against the budget.
func (u *update) resize(ctx context.Context, pod *corev1.Pod, next inject.Update) (o outcome, done bool) {
	switch {
	case next.Record == nil && next.Patch == nil && u.now.Resize == inplace.ResizeUnanswered:
		return isRefused(inplace.ResizeTimedOut, refusalWait, fmt.Errorf("the kubelet of Node %s has not acted on the resize", pod.Spec.NodeName)), u.live
	case next.Record == nil && next.Patch == nil:
		return isStale("the kubelet has not acted on a resize"), u.live
	case u.lacksResize():
		return noResize(), true
	case next.Record != nil && u.noted:
		return isRefused(inplace.UpdateImpossible, refusalWait, errors.New("another program removes the record of the resize from the Pod")), true
	case next.Record != nil:
		after, err := u.patch(ctx, pod, next.Record)
		if err != nil {
			return u.notWritten(err, inplace.Refused)
		}
		u.noted, u.live = true, true
		return u.follow(ctx, after)
	}
	after, err := u.patch(ctx, pod, next.Patch, "resize")
	switch {
	case err == nil:
		return outcome{result: written, version: versionOf(after)}, true
	case isNoSubresource(err):
		u.resizeMissed.Store(new(time.Now()))
		return noResize(), true
	}
	return u.notWritten(err, inplace.Refused)
}

func noResize() outcome {
	o := isRefused(inplace.ResizeUnsupported, refusalWait, errNoResize)
	o.stuck = true
	return o
}

// isStuck reports whether the content needs a new Pod. The decision uses the live Pod,
// which has fields that the record of the watch lacks.
func (u *update) isStuck(next inject.Update) bool {
	writes := next.Record != nil || next.Patch != nil
	return next.Verdict.Way == inplace.Recreate || next.Verdict.Way == inplace.Resize && writes && u.lacksResize()
}

// isNoSubresource reports whether the API server does not have a subresource. An API
// server that does not have the Pod answers with a Status; one that does not have the
// subresource does not.
func isNoSubresource(err error) bool {
	return apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err) && apierrors.IsUnexpectedServerError(err)
}

// blockedFor returns why the Pod that was read cannot be updated in place.
func (u *update) blockedFor(pod *corev1.Pod, next inject.Update) outcome {
	wait := refusalWait
	if u.now.Way != inplace.Resize {
		wait = nodeWait
	}
	o := isRefused(next.Verdict.Reason, wait, errors.New(explain(next, pod.Spec.NodeName)))
	o.stuck = u.isStuck(next)
	return o
}

// explain is the message in the status of the SidecarSet.
func explain(next inject.Update, node string) string {
	switch reason := next.Verdict.Reason; reason {
	case inplace.NodeTooOld:
		return fmt.Sprintf("node %s has a kubelet older than 1.32, which does not restart native sidecars", node)
	case inplace.NodeNotReady:
		return fmt.Sprintf("node %s is not ready, or does not exist", node)
	default:
		return cmp.Or(next.Message, explanations[reason], "the Pod is on node "+node)
	}
}

// explanations are the messages of reasons about resources that come without one.
var explanations = map[inplace.Reason]string{
	inplace.ResourcesHeldElsewhere: "the sidecar has neither the resources of its revision nor the current ones",
	inplace.ImmutableFieldChanged:  "the resize would remove a value, or change the QoS class of the Pod",
	inplace.ResizeRestarts:         "the resizePolicy of the container asks for a restart",
}
