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

// NewMark records a Write. While the Pod is not back from the previous update,
// whether it was available before that is kept, and so are the containers that it
// waits for. No digest is recorded for a container that may not run the image of
// the previous update yet.
func NewMark(w Write) Mark {
	mark := Mark{Generation: w.Pod.Generation, At: w.Now.UTC().Truncate(time.Second), WasReady: IsAvailable(w.Pod)}
	if len(w.Changes) > 0 { // a write of annotations alone makes no generation
		mark.Generation++
	}
	var previous Mark // with what the Pod still waits for
	if w.Previous != nil && !Observe(w.Pod, *w.Previous).Settled(w.Now).Over() {
		previous = *w.Previous
		mark.WasReady = mark.WasReady || previous.WasReady
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
	for _, earlier := range previous.Containers {
		if earlier.Name == c.Container {
			if earlier.ID == now.ID {
				now.Image = earlier.Image
			}
			return now
		}
	}
	if status == nil || w.Uncertain {
		return now
	}
	now.Image, now.Digest = c.From, digestOf(status.ImageID)
	return now
}
