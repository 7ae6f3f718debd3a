package inject

import (
	"encoding/json"
	"time"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
)

// judgeResources finds out whether resources have to change before the images do. Each of
// the two is a write of its own, and annotations can only go with the images.
func (u *update) judgeResources(changes []inplace.ResourceChange) inplace.Verdict {
	plan, reason := inplace.PlanResize(u.Pod, changes, u.sizes.Values)
	switch {
	case reason != "":
		return inplace.Verdict{Way: inplace.Recreate, Reason: reason}
	case plan.Restarts.Restarts():
		return inplace.Verdict{Way: inplace.Recreate, Reason: inplace.ResizeRestarts}
	}
	if u.plan = plan; len(plan.Containers) > 0 {
		return inplace.Verdict{Way: inplace.Resize}
	}
	state, message := inplace.Sizes{Values: plan.Sizes}.Observe(u.Pod)
	u.message = message
	switch {
	case state == inplace.ResizeDone:
		return inplace.Verdict{Way: inplace.Images}
	case state == inplace.ResizeExcluded:
		return inplace.Verdict{Way: inplace.Recreate, Reason: state.Why()}
	case state.Why() != "":
		return inplace.Verdict{Way: inplace.LeaveAlone, Reason: state.Why()}
	}
	return inplace.Verdict{Way: inplace.Resize}
}

// resize writes the resources, unless the Pod has them and the kubelet carries them out.
// The sizes have to be recorded first: then the Pod watch shows when the kubelet is done.
func (u *update) resize(verdict inplace.Verdict) (Update, error) {
	out := Update{Verdict: verdict, Message: u.message}
	if err := u.missing(); err != nil {
		return Update{}, err
	}
	var err error
	switch {
	case !u.plan.Covers(u.sizes.Values):
		marks := u.marks.WithSizes(u.set, inplace.Sizes{At: u.Now.UTC().Truncate(time.Second), Values: u.plan.Sizes})
		out.Record, err = json.Marshal(podPatch{Metadata: metadataPatch{
			ResourceVersion: u.Pod.ResourceVersion, Annotations: map[string]string{appsv1beta1.AnnotationInPlace: marks.Format(u.Pod.UID)},
		}})
	case len(u.plan.Containers) > 0:
		out.Patch, err = u.plan.Patch(u.Pod.ResourceVersion)
	}
	return out, err
}
