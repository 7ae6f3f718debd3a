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
	// attempts is how often a Pod is read and written again, because another writer
	// was faster, or because the API server did not say whether it has written.
	attempts = 4
	// readTimeout bounds a read.
	readTimeout = 10 * time.Second
	// maxMessage bounds what is kept of an answer of the API server.
	maxMessage = 256
)

// result is what became of a Pod that was taken.
type result string

const (
	written result = "written"
	refused result = "refused" // by the API server, or by what surrounds the Pod
	failed  result = "failed"  // for an unknown reason
	stale   result = "stale"   // the Pod is not what its queue has
)

// outcome is what a write came to.
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

// update brings one Pod to a Program, if it still can and has to be.
func (e *Executor) update(ctx context.Context, batch Batch, take rollout.Take) outcome {
	u := update{Executor: e, program: batch.Program, contents: batch.Contents, take: take}
	for i := range attempts {
		u.live = i > 0
		if o, done := u.attempt(ctx); done {
			return o
		}
		if errors.Is(u.unsure, context.DeadlineExceeded) || ctx.Err() != nil {
			break
		}
	}
	return u.last(ctx)
}

// update is one Pod on its way.
type update struct {
	*Executor
	program  *inject.Program
	contents tally.Contents
	take     rollout.Take
	// record is that of the Pod as it was read last, and now what it means to the
	// rollout.
	record *podstate.Record
	now    tally.Outlook
	// noted: the Pod has been written to record a resize.
	noted bool
	// live: the last read was.
	live bool
	// unsure is why it is not known whether the last write was carried out; nil if
	// it is known.
	unsure error
}

// attempt reads the Pod and writes it. It is not done if the Pod is to be read again.
//
// The first read is not live: the API server answers it from memory. If that is old, the
// write fails for its precondition, and nothing but a write follows from it.
func (u *update) attempt(ctx context.Context) (o outcome, done bool) {
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
	return u.follow(ctx, pod)
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
		return isRefused(inplace.WriteFailed, refusalWait, err), true
	case verdict.Reason != "":
		return u.blockedFor(pod, next), u.live
	case verdict.Way == inplace.Resize:
		return u.resize(ctx, pod, next)
	case verdict.Way != inplace.Images:
		return isStale("the Pod does not have to be updated"), true
	}
	return u.write(ctx, pod, next)
}

// gather looks up what is needed to decide about the Pod that was read.
func (u *update) gather(ctx context.Context, pod *corev1.Pod) (inject.UpdateInput, error) {
	node, err := u.node(ctx, pod)
	if err != nil {
		return inject.UpdateInput{}, fmt.Errorf("reading Node %s: %w", pod.Spec.NodeName, err)
	}
	previous, err := u.known.previous(ctx, u.program, pod)
	return inject.UpdateInput{
		Pod: pod, Record: u.record, Program: u.program, Previous: previous,
		Difference: u.contents.Of(podstate.MakeName(u.program.Name()), u.record), Node: node, Now: time.Now(),
	}, err
}

// look notes what the Pod that was read means to the rollout.
func (u *update) look(pod *corev1.Pod) {
	u.record = podstate.FromPod(pod).At(time.Now())
	u.now = tally.Look(u.program, u.record, u.contents)
}

// judge decides about the Pod as it is now. It is not done if the Pod is to be
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

// node is what is known of the node of a Pod. It is looked up only for Pods with
// native sidecars to update: for others it changes nothing.
func (u *update) node(ctx context.Context, pod *corev1.Pod) (inplace.Node, error) {
	if !u.now.Changed.Has(inplace.Native) || pod.Spec.NodeName == "" {
		return inplace.Node{}, nil
	}
	return u.nodes.get(ctx, pod.Spec.NodeName)
}

// write sends the patch.
func (u *update) write(ctx context.Context, pod *corev1.Pod, next inject.Update) (o outcome, done bool) {
	after, err := u.patch(ctx, pod, next.Patch)
	if err != nil {
		return u.notWritten(err)
	}
	return outcome{result: written, version: versionOf(after), disturbed: next.Mark.WasReady && len(next.Mark.Containers) > 0}, true
}

// notWritten says what the error of a write means for the Pod.
func (u *update) notWritten(err error) (o outcome, done bool) {
	switch {
	case errors.Is(err, errNotLeading):
		return isStale("%v", err), true
	case apierrors.IsConflict(err):
		return outcome{}, false
	case apierrors.IsNotFound(err):
		return isStale("the Pod is gone"), true
	case isRefusal(err):
		return isRefused(inplace.Refused, refusalWait, err), true
	}
	u.unsure = err
	return outcome{}, false
}

// last looks at a Pod of which it is not known whether it was written. The write
// is over: the API server ends a request when its client does.
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

// isRefusal reports whether the API server has said that it does not accept a write.
func isRefusal(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500 && !apierrors.IsTooManyRequests(err) && !apierrors.IsUnauthorized(err) && !apierrors.IsTimeout(err)
}

// read reads a Pod, as it is now or as the API server remembers it.
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

// patch writes a Pod, or its status. It does not end with ctx, so that its end is
// known.
func (e *Executor) patch(ctx context.Context, pod *corev1.Pod, body []byte, subresources ...string) (*corev1.Pod, error) {
	if err := e.limit.Wait(ctx); err != nil {
		return nil, err
	}
	ctx, cancel, err := e.Leadership.write(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	defer cancel()
	return e.Pods.Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, subresources...)
}

// versionOf is a Pod's resourceVersion, which is a number.
func versionOf(pod *corev1.Pod) uint64 {
	version, _ := podstate.ParseVersion(pod.ResourceVersion)
	return version
}
