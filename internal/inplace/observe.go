package inplace

import (
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// State is the progress of a Pod after an update in place.
type State uint8

// The states.
const (
	// Unmarked: no record of an update is known.
	Unmarked State = iota
	// Moving: the kubelet has more to do, or a container is not ready yet.
	Moving
	// Settling: the status fits the update, but it could still be the status from
	// before. It is accepted after some time.
	Settling
	// Broken: the update is over, and the Pod is not available for another reason.
	Broken
	// Back: the containers run the images in the spec, and the Pod is available.
	Back
)

// Progress is the progress of the update that one Mark records. It is comparable. The
// zero value is that of a Pod without a Mark.
type Progress struct {
	// until is the time at which Settling ends, in seconds since 1970. From that time on,
	// the state is the value of the field then.
	until int64
	// at is when the update was sent, and since is when the state after it was reached,
	// if it was. Both are in seconds since 1970.
	at, since uint32
	state     State
	then      State
	// WasReady is that of the Mark.
	WasReady bool
}

// Settled returns the Progress as it is at a time, because Settling ends without an event.
// If the state is not Settling, it returns the same value.
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

// InFlight reports whether the Pod counts against the budget: it was available before
// the update, and the update is not over.
func (p Progress) InFlight() bool {
	return p.WasReady && (p.state == Moving || p.state == Settling)
}

// At is when the update was sent, in seconds since 1970. It distinguishes the updates of a Pod.
func (p Progress) At() uint32 { return p.at }

// BackSince returns when the Pod was back and available as it is now, in seconds since
// 1970: since the update was sent, the containers run and the condition Ready is true.
// It is 0 and false if the Pod is not back.
func (p Progress) BackSince() (since uint32, ok bool) {
	if p.state != Back {
		return 0, false
	}
	return p.since, true
}

// Over reports whether the kubelet has carried out the update: the Pod is Back or Broken.
func (p Progress) Over() bool { return p.state == Back || p.state == Broken }

// settleSlack is the time that the kubelet may take between the steps of an update,
// without the grace periods of containers that it stops.
const settleSlack = 10 * time.Second

// breakDelay is the time after the start of the last container. If the condition Ready
// becomes False later than that, the cause is not the update.
const breakDelay = 5 * time.Second

// Observe reads from a Pod's status the progress of the update that a Mark records. It
// ignores containers that the Pod does not have.
func Observe(pod *corev1.Pod, mark Mark) Progress {
	p := Progress{WasReady: mark.WasReady, at: seconds(mark.At), state: Moving}
	if !mark.observed(pod) {
		return p
	}
	available, since := IsAvailable(pod), time.Time{} // when the condition changed
	if ready := Condition(pod, corev1.PodReady); ready != nil {
		since = ready.LastTransitionTime.Time
	}
	e := evidence{pod: pod, sure: true, ready: true}
	for name, before := range mark.Containers {
		if !e.add(name, before) {
			return p
		}
	}
	p.since = max(p.at, seconds(e.started), seconds(since))
	then := Back
	if !available || !e.ready {
		then = Broken
		if available || since.IsZero() || !since.After(e.started.Add(breakDelay)) || e.hooked && !e.ready {
			return p
		}
	}
	if e.sure {
		p.state = then
		return p
	}
	p.state, p.then, p.until = Settling, then, settledAt(pod, mark, e.started)
	return p
}

// seconds returns a time in seconds since 1970. A time before 1970 or after 2106 becomes
// the nearest one that fits.
func seconds(t time.Time) uint32 { return uint32(min(max(t.Unix(), 0), math.MaxUint32)) }

// observed reports whether the status was written after the kubelet saw the update, as
// far as the status shows. If a webhook removed all images from the write, the Pod's
// generation is lower than the Mark's.
func (m *Mark) observed(pod *corev1.Pod) bool {
	observed := pod.Status.ObservedGeneration
	return observed == 0 || observed >= min(m.Generation, pod.Generation)
}

// Runs reports whether a container is ready at a time, with its latest image. Other
// containers and the Pod's conditions are ignored.
func (m *Mark) Runs(pod *corev1.Pod, container string, now time.Time) bool {
	if !m.observed(pod) || !IsReady(pod, container) {
		return false
	}
	e := evidence{pod: pod, sure: true}
	before, changed := m.Containers[container]
	return !changed || e.add(container, before) && (e.sure || now.Unix() >= settledAt(pod, *m, e.started))
}

// evidence is the combined state of the changed containers.
type evidence struct {
	pod     *corev1.Pod
	sure    bool // this cannot be the state before the update
	ready   bool
	hooked  bool      // the kubelet waits for a hook before it reports the state of a container
	started time.Time // of the container that started last
}

// add reports whether the container can be the new one, and adds its state to the evidence.
func (e *evidence) add(container string, before Before) bool {
	c, status := containerOf(e.pod, container)
	switch {
	case c == nil:
		return true
	case status == nil || status.State.Running == nil || status.ContainerID == "":
		return false
	case status.ContainerID != before.ID:
		e.sure = e.sure && before.Digest != "" && differs(status.ImageID, before.Digest)
	case before.mayRun(c.Image):
		// The image may have been changed back. The kubelet then has nothing to do, unless it
		// acts on an image from in between. If it is known from which image the container was
		// started, a status of this generation shows that the kubelet does not.
		observed := e.pod.Status.ObservedGeneration
		if observed != 0 && observed < e.pod.Generation {
			return false
		}
		e.sure = e.sure && observed != 0 && before.Image != ""
	default:
		return false
	}
	if at := status.State.Running.StartedAt.Time; at.After(e.started) {
		e.started = at
	}
	e.ready = e.ready && isReady(status)
	e.hooked = e.hooked || c.Lifecycle != nil && c.Lifecycle.PostStart != nil
	return true
}

// mayRun reports whether the container may have been started from an image.
func (b *Before) mayRun(image string) bool {
	if b.Image != "" {
		return b.Image == image
	}
	return len(b.Since) == 0 || slices.Contains(b.Since, image)
}

// settledAt is the time at which Settling ends: if the status still described the time
// before the update, it would have changed by then. The kubelet stops one changed
// container after the other, each with the Pod's whole grace period.
func settledAt(pod *corev1.Pod, mark Mark, started time.Time) int64 {
	from := mark.At
	if started.After(from) {
		from = started
	}
	// One second more, since both times are cut to the second.
	return from.Unix() + GraceSeconds(pod)*int64(len(mark.Containers)) + int64(settleSlack/time.Second) + 1
}

// GraceSeconds is a Pod's termination grace period. Each container that the kubelet stops
// may take as long as that.
func GraceSeconds(pod *corev1.Pod) int64 {
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		return min(max(*g, 0), math.MaxInt32)
	}
	return corev1.DefaultTerminationGracePeriodSeconds
}

// IsReady reports whether a container of the Pod is started and ready.
func IsReady(pod *corev1.Pod, container string) bool {
	_, status := containerOf(pod, container)
	return status != nil && isReady(status)
}

func isReady(status *corev1.ContainerStatus) bool {
	return status.Ready && (status.Started == nil || *status.Started)
}

// IsAvailable reports whether a Pod runs and its Ready condition is true.
func IsAvailable(pod *corev1.Pod) bool {
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

// digestOf returns the part of an image ID that identifies the image on any node: the
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

// containerOf returns a container or init container and its status; nil for a
// container that the Pod does not have, and for a status that the kubelet has not
// reported.
func containerOf(pod *corev1.Pod, name string) (*corev1.Container, *corev1.ContainerStatus) {
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
	if _, status := containerOf(pod, container); status != nil {
		return status.ImageID
	}
	return ""
}
