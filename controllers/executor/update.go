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

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=pods/resize,verbs=patch

// resizeMemory is how long the API server is known to lack the subresource resize.
const resizeMemory = 5 * time.Minute

// update updates one Pod to a Program, if that is still possible and needed.
func (e *Executor) update(ctx context.Context, due tally.Due, take rollout.Take) rollout.Result {
	a := &attempt{due: due, take: take}
	return e.try(ctx, a, inplace.Refused, func(ctx context.Context) (rollout.Result, error) { return e.write(ctx, a) })
}

// write writes the Pod that was read.
func (e *Executor) write(ctx context.Context, a *attempt) (rollout.Result, error) {
	if !a.due.Program.Selector.Matches(labels.Set(a.pod.Labels)) {
		return rollout.Result{}, errReadAgain
	}
	next, known, err := e.decide(ctx, a.due, a.pod)
	if problem := (*inject.MetadataError)(nil); errors.As(err, &problem) {
		return blocked(inplace.UpdateImpossible, problem.Error()), nil
	}
	if err != nil {
		return failed(err), nil
	}
	switch verdict := next.Verdict; {
	case verdict.Way == inplace.Current && a.mayBeWritten():
		return written(a.pod), nil
	case a.last:
		return failed(a.unsure), nil
	case a.take.Free && podstate.IsAvailable(a.pod), verdict.Waits, verdict.Way == inplace.Current:
		return rollout.Result{}, errReadAgain
	case verdict.Reason != "" && a.live:
		result := blocked(verdict.Reason, explain(next, a.pod.Spec.NodeName))
		result.Recreate = e.isStuck(next)
		return result, nil
	case verdict.Way != inplace.Resize && verdict.Way != inplace.Images:
		return rollout.Result{}, errReadAgain
	}
	if !known || a.pod.CreationTimestamp.Unix() >= a.due.Since {
		switch latest, err := e.isLatest(ctx, a.due.Program); {
		case err != nil:
			return failed(err), nil
		case !latest:
			return stale("the SidecarSet has changed"), nil
		}
	}
	if next.Verdict.Way == inplace.Resize {
		return e.resize(ctx, a, next)
	}
	after, err := e.patch(ctx, a.pod, next.Patch)
	if err != nil {
		return rollout.Result{}, err
	}
	if lost := undone(a.due.Program, next, after); lost != "" {
		return blocked(inplace.WriteUndone, "another program, such as an admission webhook, has taken back "+lost), nil
	}
	return written(after), nil
}

// isLatest reports whether the API server has no newer generation of a SidecarSet. It is asked
// about Pods that may carry a newer content, because admission may know it before this leader does.
func (e *Executor) isLatest(ctx context.Context, program *inject.Program) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	generation, err := e.Generation(ctx, program.Name())
	return generation == program.Set.Generation, err
}

// decide returns the update of a Pod, and whether a ControllerRevision has the content that the
// Pod carries. The Node is read only if it matters: if a native sidecar is to be restarted.
func (e *Executor) decide(ctx context.Context, due tally.Due, pod *corev1.Pod) (next inplace.Update, known bool, err error) {
	previous, err := e.known.previous(ctx, due.Program, pod)
	if err != nil {
		return inplace.Update{}, false, err
	}
	known = previous != nil
	in := inplace.UpdateInput{Pod: pod, Program: due.Program, Content: due.Content, Previous: previous, Now: time.Now()}
	next, err = inplace.UpdateInPlace(in)
	writes := next.Patch != nil || next.Record != nil
	if err != nil || !writes || !next.Verdict.Changed.Has(podstate.Native) || pod.Spec.NodeName == "" {
		return next, known, err
	}
	if in.Node, err = e.nodes.get(ctx, pod.Spec.NodeName); err != nil {
		return inplace.Update{}, false, fmt.Errorf("reading Node %s: %w", pod.Spec.NodeName, err)
	}
	if in.Node != (inplace.Node{}) {
		next, err = inplace.UpdateInPlace(in)
	}
	return next, known, err
}

// undone returns what another program has taken back from a write, "" if nothing. A webhook
// that rewrites images, to those of a mirror or to digests, takes nothing back: a container then
// has a third image, or, if its new image is rewritten to what it had, others have.
func undone(program *inject.Program, update inplace.Update, after *corev1.Pod) string {
	takenBack := func(change podstate.Change) bool {
		c, _ := podstate.ContainerOf(after, change.Container)
		return c != nil && c.Image == change.From
	}
	if all := update.Changes; len(all) > 0 && !slices.ContainsFunc(all, func(c podstate.Change) bool { return !takenBack(c) }) {
		return fmt.Sprintf("the image of container %s", all[0].Container)
	}
	if hashes := podstate.ParseHashes(after.Annotations[appsv1beta1.AnnotationHash]); hashes.Hash(program.Name()) != program.Hash {
		return "the annotation " + appsv1beta1.AnnotationHash
	}
	return ""
}

// resize does the next step of a resize: it records the resize on the Pod, and then sends it,
// in one call if nothing fails.
func (e *Executor) resize(ctx context.Context, a *attempt, next inplace.Update) (rollout.Result, error) {
	switch {
	case e.lacksResize():
		return noResize(), nil
	case next.Record != nil && a.noted:
		return blocked(inplace.WriteUndone, "another program removes the record of the resize from the Pod"), nil
	case next.Record != nil:
		after, err := e.patch(ctx, a.pod, next.Record)
		if err != nil {
			return rollout.Result{}, err
		}
		a.pod, a.noted, a.live = after, true, true
		return e.write(ctx, a)
	}
	after, err := e.patch(ctx, a.pod, next.Patch, "resize")
	switch {
	case err != nil && isNoSubresource(err):
		e.resizeMissed.Store(new(time.Now()))
		return noResize(), nil
	case err != nil:
		return rollout.Result{}, err
	case haveSameResources(a.pod, after):
		return blocked(inplace.WriteUndone, "another program, such as an admission webhook, has taken back the resources"), nil
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

func noResize() rollout.Result {
	result := blocked(inplace.ResizeUnsupported, "the API server does not have pods/resize, which Kubernetes has since 1.33")
	result.Recreate = true
	return result
}

// isStuck reports whether the content needs a new Pod. The decision uses the live Pod,
// which has fields that the record of the watch lacks.
func (e *Executor) isStuck(next inplace.Update) bool {
	writes := next.Record != nil || next.Patch != nil
	return next.Verdict.Way == inplace.Recreate || next.Verdict.Way == inplace.Resize && writes && e.lacksResize()
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
	case inplace.NodeNotReady:
		return fmt.Sprintf("node %s is not ready, or does not exist", node)
	case inplace.ResizeTimedOut:
		return fmt.Sprintf("the kubelet of node %s has not acted on the resize", node)
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
