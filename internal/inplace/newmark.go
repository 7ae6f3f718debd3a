package inplace

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Change is one container that an update gives another image.
type Change struct {
	Container string
	Kind      Kind
	From, To  string
}

// Write is an update that is about to be written to a Pod.
type Write struct {
	// Pod as it was read. The write has its resourceVersion as a precondition.
	Pod *corev1.Pod
	// Previous is the SidecarSet's last Mark of the Pod, nil if there is none.
	Previous *Mark
	// Changes are the containers that get another image.
	Changes []Change
	// Uncertain: another operator has changed images before, and the kubelet may not
	// have acted on that yet.
	Uncertain bool
	// Over: the Pod was back from the previous update for so long that the update is over,
	// whatever the status says now.
	Over bool
	Now  time.Time
}

// longestPull is the longest time that an image pull is expected to take, with the
// steps before and after it. A Pod whose Settling is over no longer counts against the
// budget. To record which image its containers run, longestPull must have passed as
// well: with a wrong record, the operator could wait forever for a restart that does
// not happen.
const longestPull = time.Hour

// NewMark returns the record of a Write. If the previous update is not over, the new
// Mark keeps whether the Pod was available before it, and the containers that it waits
// for. It has no image and no digest for a container that may not run the image of the
// previous update yet.
func NewMark(w Write) Mark {
	mark := Mark{Generation: w.Pod.Generation, At: w.Now.UTC().Truncate(time.Second), WasReady: IsAvailable(w.Pod), Containers: map[string]Before{}}
	if len(w.Changes) > 0 { // a write of annotations alone makes no generation
		mark.Generation++
	}
	var previous Mark // with the containers that may not run its images
	if w.Previous != nil {
		p := Observe(w.Pod, *w.Previous)
		mark.WasReady = mark.WasReady || w.Previous.WasReady && !w.Over && !p.Settled(w.Now).Over()
		if !p.Settled(w.Now.Add(-longestPull)).Over() {
			previous = *w.Previous
		}
	}
	for i := range w.Changes {
		if c := &w.Changes[i]; c.Kind != Plain {
			mark.Containers[c.Container] = w.before(c, previous)
		}
	}
	for name, before := range previous.Containers {
		changes := func(c Change) bool { return c.Container == name }
		if !slices.ContainsFunc(w.Changes, changes) {
			mark.Containers[name] = before
		}
	}
	return mark
}

// before returns the present state of a container. The status of a container that waits
// for an earlier update may be as old as that update.
func (w *Write) before(c *Change, previous Mark) (now Before) {
	_, status := containerOf(w.Pod, c.Container)
	if status != nil {
		now.ID = status.ContainerID
	}
	certain := status != nil && !w.Uncertain
	if earlier, waits := previous.Containers[c.Container]; waits {
		if now.ID == earlier.ID {
			now.Image, now.Since = earlier.Image, with(earlier.Since, c.From)
			return now
		}
		// A digest is recorded at the first of several updates only. So a container with
		// another digest runs the image that the first one gave it.
		certain = status != nil && earlier.Digest != "" && differs(status.ImageID, earlier.Digest)
		now.Since = with(with(earlier.Since, earlier.Image), c.From)
	}
	if certain {
		now.Image, now.Digest, now.Since = c.From, digestOf(status.ImageID), nil
	}
	return now
}

// with returns the images and one more. If there are too many, it returns none, which
// means any image.
func with(images []string, image string) []string {
	if image == "" || slices.Contains(images, image) {
		return images
	}
	if len(images) == mostImages {
		return nil
	}
	return append(slices.Clone(images), image)
}

// mostImages is the largest number of images of a container that a Mark records.
const mostImages = 8
