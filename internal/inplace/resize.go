package inplace

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
)

// Resizing is what brings the cpu and memory of a Pod's sidecars to the current
// content.
type Resizing struct {
	Containers []Resized
	// Restarts are the kinds of the containers that the kubelet restarts for it.
	Restarts Kinds
}

// Resized holds the values of one container that have to change.
type Resized struct {
	Container        string
	Init             bool
	Requests, Limits corev1.ResourceList
}

// PlanResize compares a Pod with two contents of a SidecarSet, three ways: a value
// is changed only if the Pod still has that of the old content. If another writer
// has changed it, or if Kubernetes would refuse the result, the reason says so, and
// there is no plan. The plan is empty if the Pod has all values.
func PlanResize(pod *corev1.Pod, changes []ResourceChange) (Resizing, Reason) {
	var plan Resizing
	after := pod.DeepCopy()
	for i := range changes {
		change := &changes[i]
		c := resizable(after, change)
		if c == nil {
			return Resizing{}, ImmutableFieldChanged
		}
		resized := Resized{Container: change.Container, Init: change.Init}
		var free [2]bool
		resized.Requests, free[0] = threeWay(change.Old.Requests, change.New.Requests, c.Resources.Requests)
		resized.Limits, free[1] = threeWay(change.Old.Limits, change.New.Limits, c.Resources.Limits)
		if !free[0] || !free[1] {
			return Resizing{}, ResourcesHeldElsewhere
		}
		if len(resized.Requests)+len(resized.Limits) == 0 {
			continue
		}
		plan.Containers = append(plan.Containers, resized)
		if restartsFor(c, resized) {
			plan.Restarts = plan.Restarts.With(kindOf(pod, c, change.Init))
		}
		c.Resources.Requests = apply(c.Resources.Requests, resized.Requests)
		c.Resources.Limits = apply(c.Resources.Limits, resized.Limits)
	}
	if qosOf(pod) != qosOf(after) {
		return Resizing{}, ImmutableFieldChanged
	}
	return plan, ""
}

func resizable(pod *corev1.Pod, change *ResourceChange) *corev1.Container {
	if !change.Init {
		return find(pod.Spec.Containers, change.Container, nameOf)
	}
	c := find(pod.Spec.InitContainers, change.Container, nameOf)
	if c == nil || InitKindOf(c) != Native {
		return nil
	}
	return c
}

func kindOf(pod *corev1.Pod, c *corev1.Container, init bool) Kind {
	if init {
		return InitKindOf(c)
	}
	return KindOf(pod, c)
}

// threeWay returns the values to write. It reports false if the Pod has a value
// that is neither the old nor the new one.
func threeWay(old, now, live corev1.ResourceList) (write corev1.ResourceList, free bool) {
	for name, want := range now {
		before, had := old[name]
		if had && before.Cmp(want) == 0 {
			continue
		}
		has, present := live[name]
		switch {
		case present && has.Cmp(want) == 0:
		case present != had || present && has.Cmp(before) != 0:
			return nil, false
		default:
			if write == nil {
				write = corev1.ResourceList{}
			}
			write[name] = want
		}
	}
	return write, true
}

func apply(live, write corev1.ResourceList) corev1.ResourceList {
	out := live.DeepCopy()
	for name, value := range write {
		if out == nil {
			out = corev1.ResourceList{}
		}
		out[name] = value
	}
	return out
}

func restartsFor(c *corev1.Container, r Resized) bool {
	for _, policy := range c.ResizePolicy {
		_, request := r.Requests[policy.ResourceName]
		_, limit := r.Limits[policy.ResourceName]
		if (request || limit) && policy.RestartPolicy == corev1.RestartContainer {
			return true
		}
	}
	return false
}

// qosOf is the quality of service class that a Pod with these resources has.
func qosOf(pod *corev1.Pod) corev1.PodQOSClass {
	var all []*corev1.ResourceRequirements
	if pod.Spec.Resources != nil {
		all = append(all, pod.Spec.Resources)
	} else {
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				all = append(all, &list[i].Resources)
			}
		}
	}
	some, guaranteed := false, true
	for _, r := range all {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			request, limit := r.Requests[name], r.Limits[name]
			some = some || !request.IsZero() || !limit.IsZero()
			guaranteed = guaranteed && !limit.IsZero() && request.Cmp(limit) == 0
		}
	}
	switch {
	case !some:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// Patch renders the plan as a strategic merge patch of the Pod's subresource
// resize, with the resourceVersion of the Pod that it was made for as precondition.
func (r Resizing) Patch(resourceVersion string) ([]byte, error) {
	type resources struct {
		Requests corev1.ResourceList `json:"requests,omitempty"`
		Limits   corev1.ResourceList `json:"limits,omitempty"`
	}
	type container struct {
		Name      string    `json:"name"`
		Resources resources `json:"resources"`
	}
	var patch struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Spec struct {
			InitContainers []container `json:"initContainers,omitempty"`
			Containers     []container `json:"containers,omitempty"`
		} `json:"spec"`
	}
	patch.Metadata.ResourceVersion = resourceVersion
	for _, c := range r.Containers {
		list := &patch.Spec.Containers
		if c.Init {
			list = &patch.Spec.InitContainers
		}
		*list = append(*list, container{c.Container, resources{c.Requests, c.Limits}})
	}
	return json.Marshal(patch)
}

// ResizeState is how far the kubelet is with a resize.
type ResizeState uint8

// The states of a resize.
const (
	// ResizeMoving: the kubelet has not done it yet.
	ResizeMoving ResizeState = iota
	// ResizeDone: the containers have the values of the spec.
	ResizeDone
	// ResizeDeferred: the node has no room now. The kubelet tries again.
	ResizeDeferred
	// ResizeInfeasible: the kubelet refuses it, and does not try again.
	ResizeInfeasible
	// ResizeFailed: the kubelet tried, and tries again.
	ResizeFailed
)

// ObserveResize reads from a Pod's status how far the kubelet is with the resources
// of these sidecars, as the Pod's spec has them, and what it says about that.
func ObserveResize(pod *corev1.Pod, changes []ResourceChange) (state ResizeState, message string) {
	if observed := pod.Status.ObservedGeneration; observed != 0 && observed < pod.Generation {
		return ResizeMoving, ""
	}
	for i := range pod.Status.Conditions {
		switch c := &pod.Status.Conditions[i]; {
		case c.Status != corev1.ConditionTrue:
		case c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonInfeasible:
			return ResizeInfeasible, c.Message
		case c.Type == corev1.PodResizePending:
			return ResizeDeferred, c.Message
		case c.Type == corev1.PodResizeInProgress && c.Reason == corev1.PodReasonError:
			return ResizeFailed, c.Message
		case c.Type == corev1.PodResizeInProgress:
			return ResizeMoving, c.Message
		}
	}
	for i := range changes {
		c, status := containerOf(pod, changes[i].Container)
		if c == nil || status == nil || !has(c.Resources, status) {
			return ResizeMoving, ""
		}
	}
	return ResizeDone, ""
}

// has reports whether a container has the cpu and memory of its spec. The runtime
// rounds tiny values of cpu. What the kubelet has allocated is exact, so that counts
// for requests.
func has(spec corev1.ResourceRequirements, status *corev1.ContainerStatus) bool {
	if status.Resources == nil {
		return false
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if want, ok := spec.Requests[name]; ok {
			allocated, exact := status.AllocatedResources[name]
			if actual := status.Resources.Requests[name]; actual.Cmp(want) != 0 && !(exact && allocated.Cmp(want) == 0) {
				return false
			}
		}
		if want, ok := spec.Limits[name]; ok {
			if actual := status.Resources.Limits[name]; actual.Cmp(want) != 0 {
				return false
			}
		}
	}
	return true
}
