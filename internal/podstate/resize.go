package podstate

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sidecarset/operator/internal/jsonread"
)

// ResizeState is the progress of a resize.
type ResizeState uint8

// The states of a resize.
const (
	// NoResize: none is under way.
	NoResize ResizeState = iota
	// ResizeOpen: the Pod's spec does not have the values yet, or not any more.
	ResizeOpen
	// ResizeMoving: the kubelet has not carried it out yet.
	ResizeMoving
	// ResizeDone: the containers have the values of the spec.
	ResizeDone
	// ResizePutOff: the node does not have enough free resources now. The kubelet tries
	// again.
	ResizePutOff
	// ResizeExcluded: the kubelet refuses it, and does not try again.
	ResizeExcluded
	// ResizeBroken: the kubelet tried, and tries again.
	ResizeBroken
)

// Observe reads from a Pod how far a resize is, and the kubelet's message about it.
func (z *Resize) Observe(pod *corev1.Pod) (state ResizeState, message string) {
	if !z.made(pod) {
		return ResizeOpen, ""
	}
	return observeResize(pod, z.Containers)
}

// made reports whether the resize was written to the Pod's spec, as far as the generation says.
func (z *Resize) made(pod *corev1.Pod) bool {
	return pod.Generation == 0 || pod.Generation >= z.Generation
}

// written returns what the Pod says about a resize that is not done.
func (z *Resize) written(pod *corev1.Pod) Written {
	w := Written{At: seconds(z.At), Started: seconds(z.At)}
	if !z.WasReady {
		w.StateBefore = WasNotReady
	}
	if pod.Status.ObservedGeneration != 0 && !reaches(pod, z.Generation) {
		w.Why = WaitsForNode
	}
	return w
}

// observeResize reads from a Pod's status how far the kubelet is with the resources of
// these containers, as the Pod's spec has them, and the kubelet's message about that. A
// message about other containers does not count once these containers have their resources.
func observeResize(pod *corev1.Pod, containers []string) (state ResizeState, message string) {
	if len(containers) == 0 {
		return ResizeDone, ""
	}
	if observed := pod.Status.ObservedGeneration; observed != 0 && observed < pod.Generation {
		return ResizeMoving, ""
	}
	pending := ResizeMoving
	for i := range pod.Status.Conditions {
		switch c := &pod.Status.Conditions[i]; {
		case c.Status != corev1.ConditionTrue:
		case c.Type == corev1.PodResizePending && c.Reason == corev1.PodReasonInfeasible:
			pending, message = ResizeExcluded, c.Message
		case c.Type == corev1.PodResizePending:
			pending, message = ResizePutOff, c.Message
		case c.Type == corev1.PodResizeInProgress && c.Reason == corev1.PodReasonError:
			return ResizeBroken, c.Message
		case c.Type == corev1.PodResizeInProgress:
			return ResizeMoving, c.Message
		}
	}
	for _, name := range containers {
		c, status := ContainerOf(pod, name)
		if c == nil || status == nil || !has(c.Resources, status) {
			return pending, message
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
			if actual := status.Resources.Requests[name]; !EqualQuantities(actual, want) && !(exact && EqualQuantities(allocated, want)) {
				return false
			}
		}
		if want, ok := spec.Limits[name]; ok {
			if actual := status.Resources.Limits[name]; !EqualQuantities(actual, want) {
				return false
			}
		}
	}
	return true
}

// EqualQuantities reports whether two quantities are the same. A quantity that is too long to be
// compared is not equal to any.
func EqualQuantities(a, b resource.Quantity) bool {
	return IsShortQuantity(a) && IsShortQuantity(b) && a.Cmp(b) == 0
}

// IsShortQuantity reports whether a quantity is short enough to be compared. Its own text may
// be what the creator wrote, with any number of zeros in front.
func IsShortQuantity(q resource.Quantity) bool {
	var short resource.Quantity
	short.Add(q)
	return jsonread.IsShortQuantity(short.String())
}
