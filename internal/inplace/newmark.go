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
	Now       time.Time
}

// longestPull is how long a pull, and what comes before and after it, may take. That
// a Pod is back since it has been Settling for some seconds is enough for the
// budget. It is not enough to say what its containers run: a Pod about which that is
// wrong could wait forever for a container that the kubelet need not replace.
const longestPull = time.Hour

// NewMark records a Write. While the Pod is not back from the previous update,
// whether it was available before that is kept, and so are the containers that it
// waits for. Neither image nor digest are recorded for a container that may not run
// the image of the previous update yet.
func NewMark(w Write) Mark {
	mark := Mark{Generation: w.Pod.Generation, At: w.Now.UTC().Truncate(time.Second), WasReady: IsAvailable(w.Pod)}
	if len(w.Changes) > 0 { // a write of annotations alone makes no generation
		mark.Generation++
	}
	var previous Mark // with the containers that may not run its images
	if w.Previous != nil {
		p := Observe(w.Pod, *w.Previous)
		mark.WasReady = mark.WasReady || w.Previous.WasReady && !p.Settled(w.Now).Over()
		if !p.Settled(w.Now.Add(-longestPull)).Over() {
			previous = *w.Previous
		}
	}
	for i := range w.Changes {
		if c := &w.Changes[i]; c.Kind != Plain {
			mark.Containers = append(mark.Containers, w.before(c, previous))
		}
	}
	for _, before := range previous.Containers {
		changes := func(c Change) bool { return c.Container == before.Name }
		if !slices.ContainsFunc(w.Changes, changes) {
			mark.Containers = append(mark.Containers, before)
		}
	}
	slices.SortFunc(mark.Containers, byContainer)
	return mark
}

// before is what a container is now. What the status says about a container that
// waits for an earlier update may be as old as that update.
func (w *Write) before(c *Change, previous Mark) Before {
	now := Before{Name: c.Container}
	_, status := containerOf(w.Pod, c.Container)
	if status != nil {
		now.ID = status.ContainerID
	}
	certain := status != nil && !w.Uncertain
	for _, earlier := range previous.Containers {
		if earlier.Name != c.Container {
			continue
		}
		if now.ID == earlier.ID {
			now.Image, now.Since = earlier.Image, with(earlier.Since, c.From)
			return now
		}
		// A digest is recorded at the first of several updates only. So a container
		// with another one runs what that update asked for.
		certain = status != nil && earlier.Digest != "" && differs(status.ImageID, earlier.Digest)
		now.Since = with(with(earlier.Since, earlier.Image), c.From)
	}
	if certain {
		now.Image, now.Digest, now.Since = c.From, digestOf(status.ImageID), nil
	}
	return now
}

// with returns the images and one more. Of too many it returns none, which
// means any.
func with(images []string, image string) []string {
	if image == "" || slices.Contains(images, image) {
		return images
	}
	if len(images) == mostImages {
		return nil
	}
	return append(slices.Clone(images), image)
}

// mostImages is how many images of a container a Mark remembers.
const mostImages = 8
