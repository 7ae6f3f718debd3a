package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tracker"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=pods/resize,verbs=patch

// resizeMemory is how long the API server is known to lack the subresource resize.
const resizeMemory = 5 * time.Minute

// update updates the Pod that was read to the compiled SidecarSet, if that is still possible and needed.
func (e *Executor) update(ctx context.Context, a *attempt) (tracker.Result, error) {
	if !a.Compiled.Selector.Matches(labels.Set(a.pod.Labels)) {
		return unneeded, nil
	}
	record := podstate.FromPod(a.pod)
	live := rollout.Pod{Summary: record, Written: a.Revision.Written(record)}
	was := live.StateBefore(time.Now().Unix())
	next, known, err := e.decide(ctx, a, was)
	if problem := (*inject.MetadataError)(nil); errors.As(err, &problem) {
		return rests(inplace.UpdateImpossible, problem.Error()), nil
	}
	if err != nil {
		return failed(err), nil
	}
	switch verdict := next.Verdict; {
	case verdict.Method == inplace.Current && a.mayBeWritten():
		return written(a.pod), nil
	case a.last:
		return failed(a.unsure), nil
	case was != a.Was, verdict.Moves, verdict.Method == inplace.Current:
		return unneeded, nil
	case verdict.Reason != "":
		return rests(verdict.Reason, explain(next, a.pod.Spec.NodeName)), nil
	case verdict.Method != inplace.Resize && verdict.Method != inplace.Images:
		return unneeded, nil
	}
	if !known || a.pod.CreationTimestamp.Unix() >= a.Since {
		switch latest, err := e.isLatest(ctx, a.Compiled); {
		case err != nil:
			return failed(err), nil
		case !latest:
			return stale("the SidecarSet has changed"), nil
		}
	}
	if next.Verdict.Method == inplace.Resize {
		return e.resize(ctx, a, next)
	}
	after, err := e.patch(ctx, a.pod, next.Patch)
	if err != nil {
		return tracker.Result{}, err
	}
	return written(after), nil
}

// isLatest reports whether the API server has no newer generation of a SidecarSet. It is asked
// about Pods that may have a newer revision, because admission may know it before this leader does.
func (e *Executor) isLatest(ctx context.Context, compiled *inject.Compiled) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	generation, err := e.Generation(ctx, compiled.Name())
	return generation == compiled.Set.Generation, err
}

// decide returns the update of a Pod, and whether a ControllerRevision has the revision that the
// Pod has.
func (e *Executor) decide(ctx context.Context, a *attempt, was podstate.StateBefore) (next inplace.Update, known bool, err error) {
	previous, err := e.known.previous(ctx, a.Compiled, a.pod)
	if err != nil {
		return inplace.Update{}, false, err
	}
	next, err = inplace.UpdateInPlace(inplace.UpdateInput{
		Pod: a.pod, Compiled: a.Compiled, Revision: a.Revision, Previous: previous, Node: a.Node, StateBefore: was, Now: time.Now(),
	})
	return next, previous != nil, err
}

// reset ends the hot upgrade of the Pod that was read, and writes an Event about the result.
func (e *Executor) reset(ctx context.Context, a *attempt) (tracker.Result, error) {
	record := podstate.FromPod(a.pod)
	live := rollout.Pod{Summary: record, Written: a.Revision.Written(record)}
	if !a.Compiled.Selector.Matches(labels.Set(a.pod.Labels)) || a.Revision.Count(record, time.Now().Unix())&inplace.Matched == 0 {
		return unneeded, nil
	}
	reset, err := inplace.ResetHotUpgrades(inplace.UpdateInput{Pod: a.pod, Compiled: a.Compiled, Revision: a.Revision, StateBefore: live.StateBefore(time.Now().Unix()), Now: time.Now()})
	switch {
	case err != nil:
		return failed(err), nil
	case reset.Patch == nil && a.mayBeWritten():
		return written(a.pod), nil
	case reset.Patch == nil:
		return unneeded, nil
	}
	about, told := events.Of(a.Compiled.Set), events.Pod{Namespace: a.pod.Namespace, Name: a.pod.Name, UID: a.pod.UID}
	after, err := e.patch(ctx, a.pod, reset.Patch)
	switch {
	case err == nil:
		told.Version = after.ResourceVersion
		e.RecordEvent(events.ContainerReset(about, told))
		return written(after), nil
	case isRefusal(err) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err):
		e.RecordEvent(events.ContainerNotReset(about, told, err))
	}
	return tracker.Result{}, err
}

// resize does the next step of a resize: it records the resize on the Pod, and then sends it,
// in one call if nothing fails.
func (e *Executor) resize(ctx context.Context, a *attempt, next inplace.Update) (tracker.Result, error) {
	switch {
	case e.lacksResize():
		return noResize(), nil
	case next.Record != nil && a.noted:
		return rests(inplace.WriteReverted, "another program removes the record of the resize from the Pod"), nil
	case next.Record != nil:
		after, err := e.patch(ctx, a.pod, next.Record)
		if err != nil {
			return tracker.Result{}, err
		}
		a.pod, a.noted = after, true
		return e.update(ctx, a)
	}
	after, err := e.patch(ctx, a.pod, next.Patch, "resize")
	switch {
	case err != nil && isNoSubresource(err):
		e.resizeMissed.Store(new(time.Now()))
		return noResize(), nil
	case err != nil:
		return tracker.Result{}, err
	case haveSameResources(a.pod, after):
		return rests(inplace.WriteReverted, "another program, such as an admission webhook, has taken back the resources"), nil
	}
	return written(after), nil
}

// haveSameResources reports whether all containers of two Pods have the same resources.
func haveSameResources(a, b *corev1.Pod) bool {
	same := func(a, b corev1.Container) bool { return apiequality.Semantic.DeepEqual(a.Resources, b.Resources) }
	return slices.EqualFunc(a.Spec.InitContainers, b.Spec.InitContainers, same) && slices.EqualFunc(a.Spec.Containers, b.Spec.Containers, same)
}

// lacksResize reports whether the API server is known to lack the subresource resize.
func (e *Executor) lacksResize() bool {
	seen := e.resizeMissed.Load()
	return seen != nil && time.Since(*seen) < resizeMemory
}

func noResize() tracker.Result {
	return rests(inplace.ResizeUnsupported, "the API server does not have pods/resize, which Kubernetes has since 1.33")
}

// isNoSubresource reports whether the API server does not have a subresource. An API
// server that does not have the Pod answers with a Status; one that does not have the
// subresource does not.
func isNoSubresource(err error) bool {
	return apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err) && apierrors.IsUnexpectedServerError(err)
}

// explain is the message in the status of the SidecarSet about a Pod that cannot be updated.
func explain(next inplace.Update, node string) string {
	switch reason := next.Verdict.Reason; reason {
	case inplace.NodeTooOld:
		return fmt.Sprintf("node %s has a kubelet older than 1.32, which does not restart native sidecars", node)
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
