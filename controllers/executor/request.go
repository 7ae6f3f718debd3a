package executor

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/text"
	"github.com/sidecarset/operator/internal/tracker"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups="",resources=pods,verbs=get;patch

const (
	// attempts is how often a Pod is read and written, if another writer was faster, or
	// if it is unknown whether the API server carried out the write.
	attempts = 4
	// readTimeout bounds a read.
	readTimeout = 10 * time.Second
	// maxMessage is the largest number of bytes that are kept of a message.
	maxMessage = 256
)

// stale is the result for a Pod that is not what was decided about.
func stale(message string) tracker.Result { return tracker.Result{Message: message} }

// unneeded is the result for a Pod that needs no write, or gets none now.
var unneeded = stale("the Pod does not have to be written, or cannot be")

// rests is the result for a Pod that was not written for a reason of its own.
func rests(reason inplace.Reason, message string) tracker.Result {
	return tracker.Result{Reason: reason, Message: text.Cut(message, maxMessage)}
}

func failed(err error) tracker.Result { return rests(inplace.WriteFailed, err.Error()) }

// written is the result of a write. A Pod's resourceVersion is a number.
func written(pod *corev1.Pod) tracker.Result {
	version, _ := podstate.ParseVersion(pod.ResourceVersion)
	return tracker.Result{Version: version}
}

// attempt is one read of a Pod, and what is known from earlier ones.
type attempt struct {
	tracker.WorkItem
	pod *corev1.Pod
	// unsure is the error after which it is unknown whether the last write was carried
	// out; nil if it is known.
	unsure error
	// last: there is no time for another write.
	last bool
	// noted: the record of a resize was written to the Pod.
	noted bool
}

// mayBeWritten reports whether it is unknown whether the last write was carried out.
func (a *attempt) mayBeWritten() bool { return a.unsure != nil }

// try reads the Pod and has work decide about it and write it, until the result is known. The
// error of work is that of its write.
func (e *Executor) try(ctx context.Context, a *attempt, work func(context.Context, *attempt) (tracker.Result, error)) tracker.Result {
	for i := range attempts + 1 {
		if current, ok := e.Current().Get(a.Compiled.Name()); !ok || current != a.Compiled {
			return stale("the SidecarSet has changed")
		}
		if a.last = a.last || i == attempts; a.last && a.unsure == nil {
			break
		}
		var err error
		a.pod, err = e.read(ctx, a.Summary.Namespace.Value(), a.Summary.Name)
		switch {
		case apierrors.IsNotFound(err), err == nil && a.pod.UID != a.Summary.UID:
			return stale("the Pod is gone")
		case err != nil:
			return failed(err)
		}
		result, err := work(ctx, a)
		if result, done := a.conclude(result, err); done {
			return result
		}
		a.last = errors.Is(a.unsure, context.DeadlineExceeded) || ctx.Err() != nil
	}
	return stale("other writers were faster each time")
}

// conclude returns the result of work. It returns done false if the Pod has to be read again.
func (a *attempt) conclude(result tracker.Result, err error) (concluded tracker.Result, done bool) {
	switch {
	case err == nil:
		return result, true
	case errors.Is(err, errNotLeading):
		return stale(err.Error()), true
	case apierrors.IsConflict(err):
		return result, false
	case apierrors.IsNotFound(err):
		return stale("the Pod is gone"), true
	case isRefusal(err):
		return rests(inplace.WriteRejected, err.Error()), true
	case a.last:
		return failed(err), true
	}
	a.unsure = err
	return result, false
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

// read reads a Pod from the API server, and not from its memory, which may be old.
func (e *Executor) read(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if err := e.limit.Wait(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return e.Pods.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

// patch writes a Pod, or a subresource of it. The write does not end with ctx, so that its result
// is known.
func (e *Executor) patch(ctx context.Context, pod *corev1.Pod, body []byte, subresources ...string) (after *corev1.Pod, err error) {
	if err := e.limit.Wait(ctx); err != nil {
		return nil, err
	}
	ctx, cancel, err := e.Leadership.write(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	defer cancel()
	// The patch has no unknown fields: the API server need not look for any.
	options := metav1.PatchOptions{FieldValidation: metav1.FieldValidationIgnore, FieldManager: inplace.FieldManager}
	return e.Pods.Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, options, subresources...)
}
