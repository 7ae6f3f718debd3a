package inplace

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// NewMark records an update that is about to be written to the Pod as it was read,
// with a resourceVersion precondition. changed are the containers that it gives
// another image and that the kubelet restarts. previous is the SidecarSet's last
// Mark of the Pod, nil if there is none.
//
// While the Pod is not back from the previous update, whether it was available
// before that is kept, and so are the containers that it waits for. No digest is
// recorded for a container that may not run the image of the previous update yet.
func NewMark(pod *corev1.Pod, previous *Mark, changed []string, now time.Time) Mark {
	mark := Mark{
		Generation: pod.Generation + 1,
		At:         now.UTC().Truncate(time.Second),
		WasReady:   IsAvailable(pod),
	}
	waits := false
	if previous != nil {
		waits = !Observe(pod, *previous).Settled(now).Over()
	}
	if waits {
		mark.WasReady = mark.WasReady || previous.WasReady
		for _, before := range previous.Containers {
			if !slices.Contains(changed, before.Name) {
				mark.Containers = append(mark.Containers, before)
			}
		}
	}
	for _, name := range changed {
		before := Before{Name: name}
		if status, _ := statusOf(pod, name); status != nil {
			before.ID = status.ContainerID
			if !waits {
				before.Digest = digestOf(status.ImageID)
			}
		}
		mark.Containers = append(mark.Containers, before)
	}
	slices.SortFunc(mark.Containers, byContainer)
	return mark
}
