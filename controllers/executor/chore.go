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

// attend does what a Pod needs apart from its queue: it ends a hot upgrade whose new
// container runs, or writes the condition SidecarSetUpgradable. It returns how long
// to wait before the Pod is looked at again.
func (e *Executor) attend(ctx context.Context, batch Batch, chore Chore) time.Duration {
	for range attempts {
		var wrote bool
		var err error
		if panicked := contained(ctx, func() { wrote, err = e.tryChore(ctx, batch, chore) }); panicked != nil {
			return refusalWait
		}
		switch {
		case apierrors.IsConflict(err):
			chore.FirstWord = false
			continue
		case err == nil && wrote && !chore.FirstWord || apierrors.IsNotFound(err) || errors.Is(err, errNotLeading):
			return staleWait
		case err == nil:
			// There is nothing to do before the Pod's next event; or nothing was read, and
			// the Pod watch has to show what was written.
			return failureWait
		}
		log.FromContext(ctx).V(1).Info("Writing a Pod failed", "Pod", chore.Namespace+"/"+chore.Name.Name, "error", err.Error())
		if isRefusal(err) {
			return refusalWait
		}
		break
	}
	return failureWait
}

// tryChore reports whether it has written the Pod, if there is no error.
func (e *Executor) tryChore(ctx context.Context, batch Batch, chore Chore) (wrote bool, err error) {
	if chore.FirstWord {
		return true, e.sayUpgradable(ctx, batch.Program, chore.Name)
	}
	pod, err := e.read(ctx, chore.Namespace, chore.Name.Name, true)
	if err != nil || pod.UID != chore.UID {
		return false, err
	}
	return e.doChore(ctx, batch, pod)
}

func (e *Executor) doChore(ctx context.Context, batch Batch, pod *corev1.Pod) (wrote bool, err error) {
	at := time.Now()
	record := podstate.FromPod(pod).At(at)
	now := tally.Look(batch.Program, record, batch.Contents)
	if !now.Matched {
		return false, nil
	}
	reset, err := inject.ResetHotUpgrades(inject.UpdateInput{Pod: pod, Record: record, Program: batch.Program, Now: at})
	switch {
	case err != nil:
		return false, err
	case reset.Patch != nil:
		return true, e.reset(ctx, batch.Program, pod, reset.Patch)
	case now.Way == inplace.Current:
		return e.writeUpgradable(ctx, batch.Program, pod, true)
	case now.Way == inplace.Recreate:
		return e.writeUpgradable(ctx, batch.Program, pod, false)
	}
	return false, nil
}

// reset ends a hot upgrade, and tells what came of it. A conflict is tried again at
// once.
func (e *Executor) reset(ctx context.Context, program *inject.Program, pod *corev1.Pod, patch []byte) error {
	about, told := events.Of(program.Set), events.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	after, err := e.patch(ctx, pod, patch)
	switch {
	case err == nil:
		told.Version = after.ResourceVersion
		e.Tell(events.ContainerReset(about, told))
	case !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !errors.Is(err, errNotLeading):
		e.Tell(events.ContainerNotReset(about, told, err))
	}
	return err
}
