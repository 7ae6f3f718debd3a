package inject

import "github.com/sidecarset/operator/internal/inplace"

// judgeResources finds out whether resources have to change before the images do.
// Each is a write of its own, and annotations can only go with the images.
func (u *update) judgeResources() inplace.Verdict {
	changes := u.Difference.Resources
	if len(changes) == 0 {
		return inplace.Verdict{Way: inplace.Images}
	}
	plan, reason := inplace.PlanResize(u.Pod, changes)
	switch {
	case reason == inplace.ResourcesHeldElsewhere:
		return inplace.Verdict{Way: inplace.LeaveAlone, Reason: reason}
	case reason != "":
		return inplace.Verdict{Way: inplace.Recreate, Reason: reason}
	case plan.Restarts.Restarts():
		return inplace.Verdict{Way: inplace.Recreate, Reason: inplace.ResizeRestarts}
	case len(plan.Containers) > 0:
		u.plan = plan
		return inplace.Verdict{Way: inplace.Resize}
	}
	state, message := inplace.ObserveResize(u.Pod, changes)
	u.message = message
	switch state {
	case inplace.ResizeDone:
		return inplace.Verdict{Way: inplace.Images}
	case inplace.ResizeMoving:
		return inplace.Verdict{Way: inplace.Resize}
	}
	return inplace.Verdict{Way: inplace.LeaveAlone, Reason: inplace.ResizeNotPossible}
}

// resize writes the resources, unless the Pod has them and the kubelet is at it.
func (u *update) resize(verdict inplace.Verdict) (Update, error) {
	out := Update{Verdict: verdict, Message: u.message}
	if len(u.plan.Containers) == 0 {
		return out, nil
	}
	if err := u.missing(); err != nil {
		return Update{}, err
	}
	var err error
	out.Patch, err = u.plan.Patch(u.Pod.ResourceVersion)
	return out, err
}
