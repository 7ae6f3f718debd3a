package podstate

import (
	"encoding/json"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// workingContainer is the container that does the work of a hot-upgrade sidecar.
type workingContainer struct {
	sidecar, container Name
	upgraded           bool // by a hot upgrade that is not over
	alone              bool // by no hot upgrade, or by one that is over
}

// readWorking reads the annotation. It keeps at most as many elements as the Pod has containers.
func readWorking(pod *corev1.Pod) (working []workingContainer) {
	texts := ParseTexts(pod.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer])
	if len(texts) > countContainers(pod) {
		return nil
	}
	for sidecar, container := range texts {
		alt := pod.Annotations[appsv1beta1.AnnotationVersionAltPrefix+container]
		working = append(working, workingContainer{MakeName(sidecar), MakeName(container), alt != "" && alt != "0", alt == "0"})
	}
	return working
}

// UpdateRecord is what one SidecarSet's update in place leaves in OpenKruise's annotation.
type UpdateRecord struct {
	SidecarSet string
	// Revision is the hash of the revision that the Pod gets.
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
