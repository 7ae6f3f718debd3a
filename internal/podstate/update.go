package podstate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/jsonread"
)

// updateState holds what in-place updates leave on a Pod.
type updateState struct {
	unreadable bool // the annotation is present and cannot be read
	// waiting has the containers that still run the image ID that was recorded
	// before their last update.
	waiting []waitingContainer
	// sets are the SidecarSets that have been updated in place.
	sets []Name
	// working has the container that does the work of each hot-upgrade sidecar.
	working []workingContainer
}

type (
	waitingContainer struct{ sidecarSet, container Name }
	workingContainer struct {
		sidecar, container Name
		upgraded           bool // by a hot upgrade that is not over
	}
)

// readUpdateState keeps at most as many elements of each kind as the Pod has containers,
// because each container needs at most one.
func readUpdateState(pod *corev1.Pod) *updateState {
	state := pod.Annotations[appsv1beta1.AnnotationInPlaceUpdateState]
	working := pod.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer]
	if state == "" && working == "" {
		return nil
	}
	u := &updateState{}
	if state != "" {
		u.readWaiting(pod, state)
	}
	if texts := ParseTexts(working); len(texts) > 0 && len(texts) <= countContainers(pod) {
		u.working = make([]workingContainer, 0, len(texts))
		for sidecar, container := range texts {
			alt := pod.Annotations[appsv1beta1.AnnotationVersionAltPrefix+container]
			u.working = append(u.working, workingContainer{MakeName(sidecar), MakeName(container), alt != "" && alt != "0"})
		}
	}
	return u
}

func (u *updateState) landed(sidecarSet, container Name) bool {
	return !u.unreadable && !slices.Contains(u.waiting, waitingContainer{sidecarSet, container})
}

// readWaiting finds the containers whose image ID is still the recorded one
// although they were given another image.
func (u *updateState) readWaiting(pod *corev1.Pod, annotation string) {
	recorded, ok := parseImageIDs(annotation)
	u.unreadable = !ok
	for _, last := range recorded {
		if set := MakeName(last.sidecarSet); len(u.sets) < countContainers(pod) && !slices.Contains(u.sets, set) {
			u.sets = append(u.sets, set)
		}
		c := inplace.Find(pod.Spec.Containers, last.container)
		status := inplace.StatusOf(pod.Status.ContainerStatuses, len(pod.Spec.Containers), last.container)
		if last.imageID == "" || c == nil || status == nil || status.ImageID != last.imageID || sameImage(c.Image, status.Image) {
			continue
		}
		if len(u.waiting) == countContainers(pod) {
			u.unreadable, u.waiting = true, nil
			return
		}
		u.waiting = append(u.waiting, waitingContainer{MakeName(last.sidecarSet), MakeName(last.container)})
	}
}

// recordedImageID is the image ID that a container had before its last update.
type recordedImageID struct{ sidecarSet, container, imageID string }

// parseImageIDs reads the annotation of in-place updates,
//
//	{"<SidecarSet>":{"lastContainerStatuses":{"<container>":{"imageID":"…"}}}}
//
// with more members that are not looked at. It reads all or nothing.
func parseImageIDs(value string) ([]recordedImageID, bool) {
	if value == "null" {
		return nil, true
	}
	if !readable(value) {
		return nil, false
	}
	r := imageIDReader{}
	r.object(value, func(sidecarSet, state string) {
		r.object(state, func(member, statuses string) {
			if member != "lastContainerStatuses" {
				return
			}
			r.object(statuses, func(container, status string) {
				r.recorded = append(r.recorded, recordedImageID{sidecarSet, container, r.imageID(status)})
			})
		})
	})
	if r.failed {
		return nil, false
	}
	return r.recorded, true
}

type imageIDReader struct {
	recorded []recordedImageID
	objects  int
	failed   bool
}

// object calls visit for the members of an object; null is an empty one.
func (r *imageIDReader) object(raw string, visit func(member, raw string)) {
	if r.objects++; r.objects > maxEntries || raw[0] != '{' && raw != "null" {
		r.failed = true
	}
	if r.failed || raw == "null" {
		return
	}
	for member, value := range jsonread.Members(raw) {
		if visit(member, value); r.failed {
			return
		}
	}
}

func (r *imageIDReader) imageID(status string) (id string) {
	r.object(status, func(member, text string) {
		if member == "imageID" {
			var ok bool
			id, ok = parseString(text)
			r.failed = r.failed || !ok
		}
	})
	return id
}
