package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=pods,verbs=get;patch

const (
	// attempts is how often a Pod is read and written, if another writer was faster, or
	// if it is unknown whether the API server carried out the write.
	attempts = 4
	// readTimeout bounds a read.
	readTimeout = 10 * time.Second
	// maxMessage is the largest number of characters that are kept of an API server's answer.
	maxMessage = 256
)

// result is the result of the work on a Pod that was taken.
type result string

const (
	written result = "written"
	refused result = "refused" // by the API server, or because of the Node, another writer or the kubelet
	failed  result = "failed"  // for an unknown reason
	stale   result = "stale"   // the live Pod differs from the queue's
)

// outcome is a result and its details.
type outcome struct {
	result
	version   uint64 // the resourceVersion of a written Pod
	disturbed bool

	reason  inplace.Reason // for which a Pod is held
	message string
	wait    time.Duration
	stuck   bool // only a new Pod can have the content
}

func isStale(format string, args ...any) outcome {
	return outcome{result: stale, message: fmt.Sprintf(format, args...)}
}

func isRefused(reason inplace.Reason, wait time.Duration, err error) outcome {
	return outcome{result: refused, reason: reason, message: bounded(err), wait: wait}
}

func hasFailed(err error) outcome {
	return outcome{result: failed, reason: inplace.WriteFailed, message: bounded(err), wait: failureWait}
}

func bounded(err error) string {
	message := []rune(err.Error())
	return string(message[:min(len(message), maxMessage)])
}

// update updates one Pod to a Program, if that is still possible and needed.
func (e *Executor) update(ctx context.Context, due tally.Due, take rollout.Take) outcome {
	u := update{Executor: e, program: due.Program, contents: due.Contents, take: take}
	for i := range attempts {
		u.live = i > 0
		if o, done := u.attempt(ctx, u.follow); done {
			return o
		}
		if errors.Is(u.unsure, context.DeadlineExceeded) || ctx.Err() != nil {
			break
		}
	}
	return u.last(ctx)
}

// update is the update of one Pod.
type update struct {
	*Executor
	program  *inject.Program
	contents tally.Contents
	take     rollout.Take
	// record is the record of the Pod as last read, and now is its state in the rollout.
	record *podstate.Record
	now    tally.Outlook
	// noted: the record of a resize was written to the Pod.
	noted bool
	// live: the last read was not answered from the API server's memory.
	live bool
	// unsure is the error after which it is unknown whether the last write was carried
	// out; nil if it is known.
	unsure error
}

// attempt reads the Pod and has follow write it. It returns done false if the Pod has to be
// read again.
//
// The API server answers the first read from its memory, which may be old. That does no
// harm: a write from an old read fails by its precondition, and any other result of it
// leads to a live read.
func (u *update) attempt(ctx context.Context, follow func(context.Context, *corev1.Pod) (outcome, bool)) (o outcome, done bool) {
	if current, ok := u.Current().Get(u.program.Name()); !ok || current != u.program {
		return isStale("the SidecarSet has changed"), true
	}
	pod, err := u.read(ctx, u.take.Namespace.Value(), u.take.Name, u.live)
	switch {
	case apierrors.IsNotFound(err):
		return isStale("the Pod is gone"), u.live
	case err != nil:
		return hasFailed(err), true
	}
	return follow(ctx, pod)
}

// follow writes the Pod that was read.
func (u *update) follow(ctx context.Context, pod *corev1.Pod) (o outcome, done bool) {
	if o, done := u.judge(pod); done {
		return o, u.live
	}
	in, err := u.gather(ctx, pod)
	if err != nil {
		return hasFailed(err), true
	}
	next, err := inject.UpdateInPlace(in)
	switch verdict := next.Verdict; {
	case err != nil:
		return isRefused(inplace.UpdateImpossible, refusalWait, err), true
	case verdict.Reason != "":
		return u.blockedFor(pod, next), u.live
	case verdict.Way == inplace.Resize:
		return u.resize(ctx, pod, next)
	case verdict.Way != inplace.Images:
		return isStale("the Pod does not have to be updated"), true
	}
	after, err := u.patch(ctx, pod, next.Patch)
	if err != nil {
		return u.notWritten(err, inplace.Refused)
	}
	return outcome{result: written, version: versionOf(after), disturbed: next.Mark.WasReady && len(next.Mark.Containers) > 0}, true
}

// gather reads the other objects that the decision about the Pod needs.
func (u *update) gather(ctx context.Context, pod *corev1.Pod) (inject.UpdateInput, error) {
	var node inplace.Node // of other Pods than those whose native sidecars are updated, it does not matter
	if u.now.Changed.Has(inplace.Native) && pod.Spec.NodeName != "" {
		var err error
		if node, err = u.nodes.get(ctx, pod.Spec.NodeName); err != nil {
			return inject.UpdateInput{}, fmt.Errorf("reading Node %s: %w", pod.Spec.NodeName, err)
		}
	}
	previous, err := u.known.previous(ctx, u.program, pod)
	return inject.UpdateInput{
		Pod: pod, Program: u.program, Previous: previous,
		Difference: u.contents.Of(podstate.MakeName(u.program.Name()), u.record), Node: node, Over: u.take.Over, Now: time.Now(),
	}, err
}

// look sets record and now from the Pod that was read.
func (u *update) look(pod *corev1.Pod) {
	u.record = podstate.FromPod(pod).At(time.Now())
	u.now = tally.Look(u.program, u.record, u.contents)
}

// judge decides about the Pod as it is now. It returns done false if the Pod has to be
// written.
func (u *update) judge(pod *corev1.Pod) (o outcome, done bool) {
	if pod.UID != u.take.UID {
		return isStale("another Pod has its name"), true
	}
	u.look(pod)
	now := u.now
	switch {
	case !now.Matched:
		return isStale("the Pod is finished, being deleted, or not selected"), true
	case now.Way == inplace.Current && u.unsure != nil:
		return outcome{result: written, version: versionOf(pod), disturbed: now.InFlight}, true
	case now.Way != inplace.Images && now.Way != inplace.Resize:
		return isStale("the Pod does not have to be updated, or cannot be"), true
	case now.InTransition:
		return isStale("the kubelet has not acted on an earlier update"), true
	case now.Ready && !u.take.Charged:
		return isStale("the Pod has become available"), true
	}
	return outcome{}, false
}

// notWritten returns the outcome of a write that failed, with the reason to show if the API
// server refused it.
func (u *update) notWritten(err error, refusal inplace.Reason) (o outcome, done bool) {
	switch {
	case errors.Is(err, errNotLeading):
		return isStale("%v", err), true
	case apierrors.IsConflict(err):
		return outcome{}, false
	case apierrors.IsNotFound(err):
		return isStale("the Pod is gone"), true
	case isRefusal(err):
		return isRefused(refusal, refusalWait, err), true
	}
	u.unsure = err
	return outcome{}, false
}

// last reads a Pod once more if it is unknown whether it was written. The write has
// ended: the API server ends a request when its client does.
func (u *update) last(ctx context.Context) outcome {
	if u.unsure == nil {
		return isStale("other writers were faster %d times", attempts)
	}
	pod, err := u.read(ctx, u.take.Namespace.Value(), u.take.Name, true)
	if err == nil {
		if o, done := u.judge(pod); done {
			return o
		}
	}
	return hasFailed(u.unsure)
}

// isRefusal reports whether the API server has refused a write.
func isRefusal(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && !apierrors.IsTooManyRequests(err) && !apierrors.IsUnauthorized(err) && !apierrors.IsTimeout(err)
}

// read reads a Pod: live, or as the API server's memory has it.
func (e *Executor) read(ctx context.Context, namespace, name string, live bool) (*corev1.Pod, error) {
	if err := e.limit.Wait(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	options := metav1.GetOptions{}
	if !live {
		options.ResourceVersion = "0"
	}
	return e.Pods.Pods(namespace).Get(ctx, name, options)
}

// send sends a write. The write does not end with ctx, so that its result is known.
func (e *Executor) send(ctx context.Context, write func(context.Context) error) error {
	if err := e.limit.Wait(ctx); err != nil {
		return err
	}
	ctx, cancel, err := e.Leadership.write(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer cancel()
	return write(ctx)
}

// patch writes a Pod, or a subresource of it.
func (e *Executor) patch(ctx context.Context, pod *corev1.Pod, body []byte, subresources ...string) (after *corev1.Pod, err error) {
	// The patch has no unknown fields: the API server need not look for any.
	options := metav1.PatchOptions{FieldValidation: metav1.FieldValidationIgnore}
	err = e.send(ctx, func(ctx context.Context) error {
		after, err = e.Pods.Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, options, subresources...)
		return err
	})
	return after, err
}

// versionOf is a Pod's resourceVersion, which is a number.
func versionOf(pod *corev1.Pod) uint64 {
	version, _ := podstate.ParseVersion(pod.ResourceVersion)
	return version
}
