package podstate

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/inplace"
)

// Annotations by which the author of a Pod forbids to evict it.
const (
	annotationSafeToEvict  = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	annotationDoNotDisrupt = "karpenter.sh/do-not-disrupt"
)

// readOwner reads who would replace the Pod, and whether it may be evicted.
func (r *Record) readOwner(pod *corev1.Pod) {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		r.Controller, r.ByJob = MakeName(string(owner.UID)), owner.Kind == "Job"
	}
	r.RunsToCompletion = pod.Spec.RestartPolicy == corev1.RestartPolicyNever || pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure
	// Karpenter also takes a duration: the Pod is then protected for that long.
	disrupt := pod.Annotations[annotationDoNotDisrupt]
	r.Protected = pod.Annotations[annotationSafeToEvict] == "false" || disrupt != "" && disrupt != "false"
}

// evictedByAPI is the reason of the condition DisruptionTarget of a Pod that was
// evicted through the Eviction API.
const evictedByAPI = "EvictionByEvictionAPI"

// readEviction finds out whether a Pod that is not active was evicted.
func (r *Record) readEviction(pod *corev1.Pod) {
	c := inplace.Condition(pod, corev1.DisruptionTarget)
	if r.Finished || c == nil || c.Status != corev1.ConditionTrue || c.Reason != evictedByAPI || tooLarge(pod) {
		return
	}
	r.Evicted = true
	r.Labels = MakeLabelSet(pod.Labels)
	r.readOwner(pod)
}
