package podstate

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// How long the status of a container may be ambiguous, in seconds.
const (
	// imagePatience: the kubelet publishes the generation of a second update with the
	// container of the first one before it kills that container. If the status does not show
	// the image of the spec by a name that is known, the container is accepted after that.
	imagePatience = 40
	// stopPatience is the time that the kubelet may take to stop a container, apart from the
	// grace period, of which digestPatience is the most that counts if digests are equal.
	stopPatience   = 10
	digestPatience = 30
)

// Observe reads from a Pod's status how far the kubelet is with the update of an InPlaceRecord. It
// ignores containers that the Pod does not have.
func (e *InPlaceRecord) Observe(pod *corev1.Pod) Written {
	w := Written{At: seconds(e.At), StateBefore: e.StateBefore}
	acknowledged := pod.Status.ObservedGeneration != 0 && reaches(pod, e.Generation)
	all := progress{replaced: true, up: true}
	for name, before := range e.Containers {
		if c, status := ContainerOf(pod, name); c != nil {
			all.add(e.container(pod, c, status, before))
		}
	}
	w.Up, w.Started = all.up, max(w.At, all.started)
	if all.replaced && reaches(pod, e.Generation) {
		w.Carried = max(w.At, all.until, 1)
	}
	switch {
	case all.inStartup:
		w.Why = WaitsForStartupProbe
	case !acknowledged && !all.acted && len(e.Containers) > 0:
		w.Why = WaitsForNode
	case all.old:
		w.Why = WaitsForKill
	}
	return w
}

// seconds returns a time in seconds since 1970. A time before 1970 or after 2106 becomes
// the nearest one that fits.
func seconds(t time.Time) uint32 { return uint32(min(max(t.Unix(), 0), math.MaxUint32)) }

// later returns a time that is some seconds after another.
func later(t uint32, by int64) uint32 { return uint32(min(int64(t)+by, math.MaxUint32)) }

// reaches reports whether the status is of a generation, as far as the node reports it. If a
// webhook removed all images from the write, the Pod's generation is lower than that.
func reaches(pod *corev1.Pod, generation int64) bool {
	observed := pod.Status.ObservedGeneration
	return observed == 0 || observed >= min(generation, pod.Generation)
}

// progress is how far the kubelet is with one changed container, or with all of them.
type progress struct {
	// For all containers, these are true if each container is so.
	replaced bool // it was started again, or needs no restart
	up       bool // it is also started and ready
	// For all containers, these are true if one container is so.
	old       bool // the old one is running
	acted     bool // it is visibly not the old one
	inStartup bool // it is a native sidecar that has not passed its startup probe

	until   uint32 // when waiting shows that this is not the state before the update
	started uint32 // when it was first started, 0 if that is not known
}

// add combines the progress of several containers.
func (p *progress) add(c progress) {
	p.replaced, p.up = p.replaced && c.replaced, p.up && c.up
	p.old, p.acted, p.inStartup = p.old || c.old, p.acted || c.acted, p.inStartup || c.inStartup
	p.until, p.started = max(p.until, c.until), max(p.started, c.started)
}

// replaced reports whether a status is that of a container which was started later.
func (b *Before) replaced(status *corev1.ContainerStatus) bool {
	return status != nil && (status.ContainerID != "" && status.ContainerID != b.ID || status.RestartCount > b.Restarts)
}

// container observes one changed container.
func (e *InPlaceRecord) container(pod *corev1.Pod, c *corev1.Container, status *corev1.ContainerStatus, before Before) (p progress) {
	if status == nil {
		p.acted = true
		return p
	}
	running := status.State.Running
	isUp := running != nil && status.ContainerID != ""
	at := seconds(e.At)
	p.inStartup = running != nil && status.Started != nil && !*status.Started && isNativeSidecar(pod, c.Name)
	switch {
	case before.replaced(status):
		p.replaced, p.acted = true, true
		first := before.Restarts
		if before.ID != "" {
			first++
		}
		if running != nil && status.RestartCount == first {
			p.started = seconds(running.StartedAt.Time)
		}
		if !sameImage(c.Image, status.Image) && !showsDigest(c.Image, status) {
			p.until = later(at, imagePatience)
		}
		if before.Digest != "" && before.Image != c.Image && digestOf(status.ImageID) == before.Digest {
			p.until = max(p.until, later(at, min(GraceSeconds(pod), digestPatience)+stopPatience))
		}
	case isUp && (before.Image == c.Image || before.Image == "" && sameImage(c.Image, status.Image)):
		// The image was changed back before the kubelet has acted, so that nothing restarts.
		p.replaced = true
		if pod.Status.ObservedGeneration == 0 {
			p.until = later(at, imagePatience)
		}
	case isUp && before.Image == "" && pod.Status.ObservedGeneration != 0 && reaches(pod, e.Generation):
		// It may be the image that was changed back. If it is not, the kubelet stops it.
		p.replaced, p.old = true, true
		p.until = later(at, imagePatience)
	default:
		p.acted, p.old = running == nil, running != nil
		return p
	}
	p.up = isUp && isReady(status)
	return p
}

func isNativeSidecar(pod *corev1.Pod, name string) bool {
	c := Find(pod.Spec.InitContainers, name)
	return c != nil && InitKindOf(c) == Native
}

// Runs reports whether a container is ready at a time, with its latest image. Other
// containers and the Pod's conditions are ignored.
func (e *InPlaceRecord) Runs(pod *corev1.Pod, container string, now time.Time) bool {
	if !reaches(pod, e.Generation) || !IsContainerReady(pod, container) {
		return false
	}
	before, changed := e.Containers[container]
	if !changed {
		return true
	}
	c, status := ContainerOf(pod, container)
	p := e.container(pod, c, status, before)
	return p.up && now.Unix() >= int64(p.until)
}
