package inplace

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kind says what the kubelet does with a container whose image changes.
type Kind uint8

// The kinds of containers.
const (
	// Regular containers are restarted, and are restarted again if the new image
	// cannot be pulled at once.
	Regular Kind = iota
	// RunsOnce is a regular container whose restart policy is Never or OnFailure: if
	// its new image cannot be pulled at once, it may never run again.
	RunsOnce
	// Native sidecars are init containers with restartPolicy Always. They are
	// restarted in every Pod, by kubelets since 1.32.
	Native
	// Plain init containers are not restarted; only a later run of theirs uses the
	// new image.
	Plain
)

// Init reports whether containers of this kind are in spec.initContainers.
func (k Kind) Init() bool { return k == Native || k == Plain }

// KindOf returns the kind of a container of spec.containers. Its own restart
// policy comes before that of the Pod.
func KindOf(pod *corev1.Pod, container *corev1.Container) Kind {
	always := pod.Spec.RestartPolicy == corev1.RestartPolicyAlways || pod.Spec.RestartPolicy == ""
	if container.RestartPolicy != nil {
		always = *container.RestartPolicy == corev1.ContainerRestartPolicyAlways
	}
	if always {
		return Regular
	}
	return RunsOnce
}

// InitKindOf returns the kind of a container of spec.initContainers.
func InitKindOf(container *corev1.Container) Kind {
	if container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways {
		return Native
	}
	return Plain
}

// Kinds is a set of kinds: those of the containers that an update gives another
// image. The zero value is empty.
type Kinds uint8

// With returns the set with one more kind.
func (ks Kinds) With(k Kind) Kinds { return ks | 1<<k }

// Has reports whether a kind is in the set.
func (ks Kinds) Has(k Kind) bool { return ks&(1<<k) != 0 }

// Restarts reports whether the kubelet restarts a container of these kinds.
func (ks Kinds) Restarts() bool { return ks&^(1<<Plain) != 0 }

// Facts are the properties of a Pod that Judge needs, apart from its containers. Facts
// is comparable and takes three bytes.
type Facts struct {
	// CountsRestarts: the Pod belongs to a Job and has the restart policy OnFailure.
	// The Job counts the restarts of all containers against its backoffLimit.
	CountsRestarts bool
	// RestartsAll: a container of the Pod has a restart rule that makes the kubelet
	// restart all of its containers.
	RestartsAll bool
	// Mirror: the Pod is the API server's copy of a static Pod, which admission cannot
	// change.
	Mirror bool
}

// FactsOf reads a Pod's facts.
func FactsOf(pod *corev1.Pod) Facts {
	return Facts{
		CountsRestarts: pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure && ownedByJob(pod),
		RestartsAll:    restartsAll(pod.Spec.InitContainers) || restartsAll(pod.Spec.Containers),
		Mirror:         IsMirror(pod.Annotations),
	}
}

// IsMirror reports whether annotations are those of the API server's copy of a
// static Pod.
func IsMirror(annotations map[string]string) bool {
	_, mirror := annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

func ownedByJob(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return owner != nil && owner.Kind == "Job"
}

func restartsAll(containers []corev1.Container) bool {
	for i := range containers {
		for _, rule := range containers[i].RestartPolicyRules {
			if rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers {
				return true
			}
		}
	}
	return false
}
