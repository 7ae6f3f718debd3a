package podstate

import corev1 "k8s.io/api/core/v1"

// Order holds what a rollout orders the Pods of a SidecarSet by.
type Order struct {
	// Created is in seconds since 1970, 0 if not known.
	Created int64
	// Restarts is the restart count of the regular container that restarted most,
	// NativeRestarts that of the native sidecar.
	Restarts, NativeRestarts int32
	// Assigned Pods have a node.
	Assigned bool
	Phase    Phase
}

// Phase is the phase of an active Pod, in the order in which a rollout takes them.
type Phase uint8

// The phases.
const (
	Pending Phase = iota
	Unknown
	Running
)

func orderOf(pod *corev1.Pod) Order {
	order := Order{Assigned: pod.Spec.NodeName != "", Created: createdAt(pod)}
	switch pod.Status.Phase {
	case corev1.PodRunning:
		order.Phase = Running
	case corev1.PodUnknown:
		order.Phase = Unknown
	}
	for i := range min(len(pod.Status.ContainerStatuses), len(pod.Spec.Containers)) {
		order.Restarts = max(order.Restarts, pod.Status.ContainerStatuses[i].RestartCount)
	}
	order.NativeRestarts = nativeRestarts(pod)
	return order
}

func createdAt(pod *corev1.Pod) int64 {
	if at := pod.CreationTimestamp; !at.IsZero() {
		return at.Unix()
	}
	return 0
}

func nativeRestarts(pod *corev1.Pod) (most int32) {
	inits := pod.Spec.InitContainers
	for i := range inits {
		if InitKindOf(&inits[i]) != Native {
			continue
		}
		if status := StatusOf(pod.Status.InitContainerStatuses, len(inits), inits[i].Name); status != nil {
			most = max(most, status.RestartCount)
		}
	}
	return most
}
