package podstate

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kind says what the kubelet does with a container whose image changes.
type Kind uint8

// The kinds of containers.
const (
	// Regular containers are restarted, and are restarted again if the new image
	// cannot be pulled immediately.
	Regular Kind = iota
	// RunsOnce is a regular container whose restart policy is Never or OnFailure: if
	// its new image cannot be pulled immediately, it may never run again.
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

// Facts are the properties of a Pod that decide how it may be updated, apart from its
// containers. Facts is comparable and takes three bytes.
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

// GraceSeconds is a Pod's termination grace period. Each container that the kubelet stops
// may take as long as that.
func GraceSeconds(pod *corev1.Pod) int64 {
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		return min(max(*g, 0), math.MaxInt32)
	}
	return corev1.DefaultTerminationGracePeriodSeconds
}

// IsContainerReady reports whether a container of the Pod is started and ready.
func IsContainerReady(pod *corev1.Pod, container string) bool {
	_, status := ContainerOf(pod, container)
	return status != nil && isReady(status)
}

func isReady(status *corev1.ContainerStatus) bool {
	return status.Ready && (status.Started == nil || *status.Started)
}

// IsPodReady reports whether a Pod runs and its Ready condition is true.
func IsPodReady(pod *corev1.Pod) bool {
	ready := Condition(pod, corev1.PodReady)
	return pod.Status.Phase == corev1.PodRunning && ready != nil && ready.Status == corev1.ConditionTrue
}

// Condition returns a condition of a Pod, nil if the Pod does not have it.
func Condition(pod *corev1.Pod, of corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == of {
			return c
		}
	}
	return nil
}

// ContainerOf returns a container or init container and its status; nil for a
// container that the Pod does not have, and for a status that the kubelet has not
// reported.
func ContainerOf(pod *corev1.Pod, name string) (*corev1.Container, *corev1.ContainerStatus) {
	if c := Find(pod.Spec.Containers, name); c != nil {
		return c, StatusOf(pod.Status.ContainerStatuses, len(pod.Spec.Containers), name)
	}
	if c := Find(pod.Spec.InitContainers, name); c != nil {
		return c, StatusOf(pod.Status.InitContainerStatuses, len(pod.Spec.InitContainers), name)
	}
	return nil, nil
}

// Find returns the container of a name, nil if there is none.
func Find(containers []corev1.Container, name string) *corev1.Container {
	for i := range containers {
		if containers[i].Name == name {
			return &containers[i]
		}
	}
	return nil
}

// StatusOf returns the status of a container; nil if there is none. It reads at most as
// many statuses as there are containers, because a kubelet reports no others.
func StatusOf(statuses []corev1.ContainerStatus, containers int, name string) *corev1.ContainerStatus {
	for i := range min(len(statuses), containers) {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}

// ImageID returns the image ID that the kubelet reports of a container or init
// container, "" if it reports none.
func ImageID(pod *corev1.Pod, container string) string {
	if _, status := ContainerOf(pod, container); status != nil {
		return status.ImageID
	}
	return ""
}

// Trouble is why a container does not run, as the kubelet says it. Zero means that
// nothing is known to be wrong.
type Trouble uint8

// Troubles is how many values of Trouble there are.
const Troubles Trouble = 12

// creating is the reason of a container that is being created. Only if that lasts, it is trouble.
const creating Trouble = 1

// completed is the first reason of state.terminated; the next one is Error.
const completed Trouble = 9

// kubeletReasons are the reasons of state.waiting, the first of which is part of a usual start, then
// those of state.terminated, and, last, one of lastState.terminated. A native sidecar that
// exited with code 0, and whose image cannot be pulled, is terminated; the kubelet reports no
// other reason.
var kubeletReasons = [Troubles]string{
	"", "ContainerCreating", "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
	"RunContainerError", "CrashLoopBackOff", "Completed", "Error", "OOMKilled",
}

// String returns the kubelet's word, "" for none.
func (t Trouble) String() string { return kubeletReasons[t] }

// IsFailure reports whether the reason is not part of a usual start.
func (t Trouble) IsFailure() bool { return t > creating }

// HasEnded reports whether all that is said is that the container has ended. A kubelet that stops a
// container to start another image says no more, until it starts it, or fails.
func (t Trouble) HasEnded() bool { return t == completed || t == completed+1 }

func troubleOf(status *corev1.ContainerStatus) Trouble {
	if status == nil || status.Ready {
		return 0
	}
	if last := status.LastTerminationState.Terminated; last != nil && status.State.Running == nil && last.Reason == kubeletReasons[Troubles-1] {
		return Troubles - 1
	}
	reason := ""
	switch state := status.State; {
	case state.Waiting != nil:
		reason = state.Waiting.Reason
	case state.Terminated != nil:
		reason = state.Terminated.Reason
	}
	return Trouble(max(0, slices.Index(kubeletReasons[:], reason)))
}
