package podstate

import (
	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// MaxSummaryBytes bounds what is kept of one Pod, by an estimate of everything that the Pod's
// user decides about: its name, labels, containers and injected list, and the notes of
// updates. In allocated memory, and with the data that package tracker keeps for each Pod, this
// is less than 4 KB. A Pod with ten containers may have 2 KB of labels; a Pod with 1 KB of
// labels may have 30 containers.
const MaxSummaryBytes = 3 << 10

// What the parts of a Summary take.
const (
	summaryBytes   = 400 // Summary, UID, and what package tracker takes for a Pod
	containerBytes = 24
	injectionBytes = 56
	noteBytes      = 16
	nameBytes      = 8
	writeBytes     = 32
)

// tooLarge reports whether a Pod's Summary would take more than MaxSummaryBytes, now or after an
// update in place. An update must not make a Pod too large, because the rollout would then
// lose sight of a Pod that it disturbs. tooLarge reads no more of the Pod than the answer
// needs.
func tooLarge(pod *corev1.Pod) bool {
	size := summaryBytes + len(pod.Name)
	if list := pod.Annotations[appsv1beta1.AnnotationInjectedList]; list != "" {
		if tooManyNames(list) {
			return true
		}
		size += countNames(list) * (injectionBytes + writeBytes)
		size += countContainers(pod) * containerBytes
		if pod.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer] != "" { // injection writes it
			size += countContainers(pod) * noteBytes
		}
	}
	for key, value := range pod.Labels {
		if size += len(key) + len(value) + len("=,"); size > MaxSummaryBytes {
			return true
		}
	}
	return size > MaxSummaryBytes
}

func countContainers(pod *corev1.Pod) int {
	return len(pod.Spec.InitContainers) + len(pod.Spec.Containers)
}
