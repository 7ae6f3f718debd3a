package podstate

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// updateState holds what OpenKruise's annotations about in-place updates say. The operator
// writes them too, so that OpenKruise can take over at any time.
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
		alone              bool // by no hot upgrade, or by one that is over
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
			u.working = append(u.working, workingContainer{MakeName(sidecar), MakeName(container), alt != "" && alt != "0", alt == "0"})
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
	var updates map[string]struct {
		LastContainerStatuses map[string]imageStatus `json:"lastContainerStatuses"`
	}
	if len(annotation) > maxValueBytes || json.Unmarshal([]byte(annotation), &updates) != nil {
		u.unreadable = true
		return
	}
	entries := len(updates)
	for _, set := range slices.Sorted(maps.Keys(updates)) {
		statuses := updates[set].LastContainerStatuses
		if entries += len(statuses); entries > maxEntries {
			u.unreadable, u.waiting = true, nil
			return
		}
		if len(statuses) > 0 && len(u.sets) < countContainers(pod) {
			u.sets = append(u.sets, MakeName(set))
		}
		for container, last := range statuses {
			c := Find(pod.Spec.Containers, container)
			status := StatusOf(pod.Status.ContainerStatuses, len(pod.Spec.Containers), container)
			if last.ImageID == "" || c == nil || status == nil || status.ImageID != last.ImageID || sameImage(c.Image, status.Image) {
				continue
			}
			if len(u.waiting) == countContainers(pod) {
				u.unreadable, u.waiting = true, nil
				return
			}
			u.waiting = append(u.waiting, waitingContainer{MakeName(set), MakeName(container)})
		}
	}
}

// UpdateRecord is what one SidecarSet's update in place leaves in OpenKruise's annotation.
type UpdateRecord struct {
	SidecarSet string
	// Revision is the content hash that the Pod gets.
	Revision string
	At       time.Time
	// ImageIDs are those of the containers that get another image, by name, as the kubelet
	// reports them before the update; "" if it reports none.
	ImageIDs map[string]string
}

// imageStatus is what the annotation records of one container.
type imageStatus struct {
	ImageID string `json:"imageID,omitempty"`
}

// RecordUpdate returns the annotation of in-place updates with this record. What is recorded
// about other SidecarSets, about containers that do not change, and in members that this build
// does not know, is kept. If the value cannot be read, nothing of it is kept.
func RecordUpdate(value string, r UpdateRecord) string {
	updates := ParseObjects(value)
	var others, statuses map[string]json.RawMessage
	_ = json.Unmarshal(updates[r.SidecarSet], &others) // an unreadable part is replaced
	_ = json.Unmarshal(others["lastContainerStatuses"], &statuses)
	if statuses == nil {
		statuses = map[string]json.RawMessage{}
	}
	for container, id := range r.ImageIDs {
		statuses[container] = marshal(imageStatus{id})
	}
	text := marshal(struct {
		Revision              string                     `json:"revision"`
		UpdateTimestamp       string                     `json:"updateTimestamp"`
		LastContainerStatuses map[string]json.RawMessage `json:"lastContainerStatuses"`
	}{r.Revision, r.At.UTC().Format(time.RFC3339), statuses})
	for _, known := range []string{"revision", "updateTimestamp", "lastContainerStatuses"} {
		delete(others, known)
	}
	if len(others) > 0 {
		text = append(append(text[:len(text)-1], ','), marshal(others)[1:]...)
	}
	updates[r.SidecarSet] = text
	return FormatObjects(updates)
}

// ForgetUpdates returns the annotation of in-place updates without the text about the
// SidecarSets that forgotten names. If the value cannot be read, nothing of it is kept.
func ForgetUpdates(value string, forgotten func(sidecarSet string) bool) string {
	updates := ParseObjects(value)
	maps.DeleteFunc(updates, func(set string, _ json.RawMessage) bool { return forgotten(set) })
	return FormatObjects(updates)
}

// marshal renders texts, maps of them, and parts of JSON texts that were read.
func marshal(value any) json.RawMessage {
	text, _ := json.Marshal(value) // such values always marshal
	return text
}
