package inplace

import (
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// State is how far a Pod is on its way back from an update in place.
type State uint8

// The states.
const (
	// Unmarked: no record of an update is known.
	Unmarked State = iota
	// Moving: the kubelet has more to do, or a container is not ready yet.
	Moving
	// Settling: all is as it has to be, but that could still be the state before the
	// update. Time decides.
	Settling
	// Broken: the Pod was back, and is not available now for another reason.
	Broken
	// Back: the containers run what they were given, and the Pod is available.
	Back
)

// Progress is what a Pod's status says about one Mark. It is comparable. Its zero
// value is that of a Pod without a Mark.
type Progress struct {
	// Generation is that of the Mark.
	Generation int64
	// until is when a Settling Pod is what then says, in seconds since 1970.
	until int64
	state State
	then  State
	// WasReady is that of the Mark.
	WasReady bool
}

// At returns the state at a time: Settling ends without an event.
func (p Progress) At(now time.Time) State { return p.Settled(now).state }

// Settled returns the Progress as it is at a time. Of one that does not settle it
// returns the same value.
func (p Progress) Settled(now time.Time) Progress {
	if p.state == Settling && now.Unix() >= p.until {
		p.state, p.until, p.then = p.then, 0, 0
	}
	return p
}

// State returns the state without regard to time: Settling lasts until an event
// or Settled ends it.
func (p Progress) State() State { return p.state }

// SettlesAt returns the time at which Settling ends, if that is the state.
func (p Progress) SettlesAt() (time.Time, bool) {
	if p.state != Settling {
		return time.Time{}, false
	}
	return time.Unix(p.until, 0), true
}

// InFlight reports whether the Pod takes a place of the budget: it was available
// before the update, and is not back.
func (p Progress) InFlight() bool {
	return p.WasReady && (p.state == Moving || p.state == Settling)
}

// Over reports whether the kubelet has done all that the update asked for. The
// Pod is Back or Broken.
func (p Progress) Over() bool { return p.state == Back || p.state == Broken }

// settleSlack is how long the kubelet may take from one step of an update to the
// next, apart from the grace periods of containers that it stops.
const settleSlack = 10 * time.Second

// breakDelay is how long after the start of the last container the condition
// Ready has to become False for that to have another reason than the update.
const breakDelay = 5 * time.Second

// Observe reads from a Pod's status how far it is with the update that a Mark
// records. A container that the Pod does not have is left out.
func Observe(pod *corev1.Pod, mark Mark) Progress {
	p := Progress{Generation: mark.Generation, WasReady: mark.WasReady, state: Moving}
	if observed := pod.Status.ObservedGeneration; observed != 0 && observed < mark.Generation {
		return p
	}
	available, since := readyCondition(pod)
	sure, started, then := true, time.Time{}, Back
	for _, before := range mark.Containers {
		status, has := statusOf(pod, before.Name)
		if !has {
			continue
		}
		if !replaced(status, before.ID) {
			return p
		}
		sure = sure && before.Digest != "" && differs(status.ImageID, before.Digest)
		if at := status.State.Running.StartedAt.Time; at.After(started) {
			started = at
		}
		if !isReady(status) {
			then = Broken
		}
	}
	if !available {
		then = Broken
	}
	if then == Broken && (since.IsZero() || available || !since.After(started.Add(breakDelay))) {
		return p
	}
	if sure {
		p.state = then
		return p
	}
	p.state, p.then, p.until = Settling, then, settledAt(pod, mark, started)
	return p
}

// settledAt is when a state that could be the one before the update has lasted so
// long that it is the one after. The kubelet stops one changed container after the
// other, each with the Pod's whole grace period.
func settledAt(pod *corev1.Pod, mark Mark, started time.Time) int64 {
	from := mark.At
	if started.After(from) {
		from = started
	}
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		grace = min(max(*g, 0), math.MaxInt32)
	}
	// One second more, since both times are cut to the second.
	return from.Unix() + grace*int64(len(mark.Containers)) + int64(settleSlack/time.Second) + 1
}

// replaced reports whether another container runs than before.
func replaced(status *corev1.ContainerStatus, before string) bool {
	return status != nil && status.State.Running != nil && status.ContainerID != "" && status.ContainerID != before
}

func isReady(status *corev1.ContainerStatus) bool {
	return status.Ready && (status.Started == nil || *status.Started)
}

// readyCondition reports whether the Pod is available, and since when it is not;
// zero if that is not known.
func readyCondition(pod *corev1.Pod) (available bool, since time.Time) {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
			return IsAvailable(pod), c.LastTransitionTime.Time
		}
	}
	return false, time.Time{}
}

// IsAvailable reports whether a Pod runs and its Ready condition is true.
func IsAvailable(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodRunning {
		return false
	}
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodReady {
			return pod.Status.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

// digestOf returns what identifies an image among those that a node reports: the
// digest behind '@', or the ID of an image that no registry served.
func digestOf(imageID string) string {
	if _, digest, ok := strings.Cut(imageID, "@"); ok {
		return digest
	}
	if _, id, ok := strings.Cut(imageID, "://"); ok {
		return id
	}
	return imageID
}

// differs reports whether an image ID is known, and is that of another image.
func differs(imageID, digest string) bool {
	now := digestOf(imageID)
	return now != "" && now != digest
}

// statusOf returns the status of a container or init container, nil if the
// kubelet has not reported it, and whether the Pod has such a container. It looks
// at no more statuses than the Pod has containers: a kubelet reports no others.
func statusOf(pod *corev1.Pod, name string) (status *corev1.ContainerStatus, has bool) {
	if named(pod.Spec.Containers, name) {
		return find(pod.Status.ContainerStatuses, len(pod.Spec.Containers), name), true
	}
	if named(pod.Spec.InitContainers, name) {
		return find(pod.Status.InitContainerStatuses, len(pod.Spec.InitContainers), name), true
	}
	return nil, false
}

func named(containers []corev1.Container, name string) bool {
	for i := range containers {
		if containers[i].Name == name {
			return true
		}
	}
	return false
}

func find(statuses []corev1.ContainerStatus, most int, name string) *corev1.ContainerStatus {
	for i := range min(len(statuses), most) {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}
