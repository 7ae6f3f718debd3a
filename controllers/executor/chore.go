package executor

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tally"
)

// How long a Pod rests after a chore: until the Pod watch has delivered the write, after a write
// that failed or was not needed, and after one that the API server refused.
const (
	staleWait, failureWait, refusalWait = time.Second, 10 * time.Second, 5 * time.Minute
)

// attend carries out a chore: it ends a hot upgrade whose new container runs, or writes
// the condition SidecarSetUpgradable. It returns how long to wait before the Pod is
// checked again.
func (e *Executor) attend(ctx context.Context, due tally.Due, chore tally.Chore) time.Duration {
	for range attempts {
		var wrote bool
		var err error
		if panicked := contained(ctx, func() { wrote, err = e.tryChore(ctx, due, chore) }); panicked != nil {
			return refusalWait
		}
		switch {
		case apierrors.IsConflict(err):
			chore.FirstWord = false
			continue
		case err == nil && wrote && !chore.FirstWord || apierrors.IsNotFound(err) || errors.Is(err, errNotLeading):
			return staleWait
		case err == nil:
			// Nothing is left to do before the Pod's next event; or the Pod was written
			// without a read, and the Pod watch has to deliver the result first.
			return failureWait
		}
		log.FromContext(ctx).V(1).Info("Writing a Pod failed", "Pod", chore.Pod.Namespace.Value()+"/"+chore.Pod.Name, "error", err.Error())
		if isRefusal(err) {
			return refusalWait
		}
		break
	}
	return failureWait
}

// tryChore makes one attempt. Without an error, it reports whether it has written the Pod.
func (e *Executor) tryChore(ctx context.Context, due tally.Due, chore tally.Chore) (wrote bool, err error) {
	if chore.FirstWord {
		return true, e.sayUpgradable(ctx, due.Program, chore.Pod)
	}
	pod, err := e.read(ctx, chore.Pod.Namespace.Value(), chore.Pod.Name, true)
	if err != nil || pod.UID != chore.Pod.UID {
		return false, err
	}
	now, record := time.Now(), podstate.FromPod(pod)
	if !record.Active || !due.Program.Selector.Matches(record.Labels.Labels()) || due.Content.Count(record, now.Unix())&inplace.Matched == 0 {
		return false, nil
	}
	reset, err := inplace.ResetHotUpgrades(inplace.UpdateInput{Pod: pod, Program: due.Program, Content: due.Content, Now: now})
	way := due.Content.Judge(record, inplace.Node{}, now.Unix()).Way
	switch {
	case err != nil:
		return false, err
	case reset.Patch != nil:
		return true, e.reset(ctx, due.Program, pod, reset.Patch)
	case way == inplace.Current:
		return e.writeUpgradable(ctx, due.Program, pod, true)
	case way == inplace.Recreate:
		return e.writeUpgradable(ctx, due.Program, pod, false)
	}
	return false, nil
}

// reset ends a hot upgrade, and writes an Event about the result. The caller retries a
// conflict immediately.
func (e *Executor) reset(ctx context.Context, program *inject.Program, pod *corev1.Pod, patch []byte) error {
	about, told := events.Of(program.Set), events.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	after, err := e.patch(ctx, pod, patch)
	switch {
	case err == nil:
		told.Version = after.ResourceVersion
		e.RecordEvent(events.ContainerReset(about, told))
	case !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !errors.Is(err, errNotLeading):
		e.RecordEvent(events.ContainerNotReset(about, told, err))
	}
	return err
}
