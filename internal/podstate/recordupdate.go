package podstate

import (
	"slices"
	"time"

	"github.com/sidecarset/operator/internal/jsonread"
)

// UpdateRecord is what one SidecarSet's update in place leaves in OpenKruise's annotation.
type UpdateRecord struct {
	SidecarSet string
	// Revision is the content hash that the Pod gets.
	Revision string
	At       time.Time
	// ImageIDs are those of the containers that get another image, as the kubelet
	// reports them before the update; "" if it reports none. They are written in
	// this order.
	ImageIDs []ContainerImageID
}

// ContainerImageID is the image ID of one container.
type ContainerImageID struct{ Container, ImageID string }

// RecordUpdate returns the annotation of in-place updates with this record. The text about
// other SidecarSets, about containers that do not change, and in members that this build does
// not know, stays as it is. If the value cannot be read, nothing of it is kept.
func RecordUpdate(value string, r UpdateRecord) string {
	var before string // what the SidecarSet had
	dst := appendUpdates([]byte{'{'}, value, func(sidecarSet, state string) bool {
		if sidecarSet == r.SidecarSet {
			before = state
		}
		return sidecarSet != r.SidecarSet
	})
	dst = appendMember(dst, r.SidecarSet, string(r.appendJSON(nil, before)))
	return string(append(dst, '}'))
}

// ForgetUpdates returns the annotation of in-place updates without the text about the
// SidecarSets that forgotten names. If the value cannot be read, nothing of it is kept.
func ForgetUpdates(value string, forgotten func(sidecarSet string) bool) string {
	dst := appendUpdates([]byte{'{'}, value, func(sidecarSet, _ string) bool { return !forgotten(sidecarSet) })
	return string(append(dst, '}'))
}

// appendUpdates appends the text of an annotation of in-place updates about the SidecarSets
// that keep accepts; nothing if the value cannot be read.
func appendUpdates(dst []byte, value string, keep func(sidecarSet, state string) bool) []byte {
	if _, ok := parseImageIDs(value); !ok || value == "null" {
		return dst
	}
	for sidecarSet, state := range jsonread.Members(value) {
		if keep(sidecarSet, state) {
			dst = appendMember(dst, sidecarSet, state)
		}
	}
	return dst
}

func (r *UpdateRecord) appendJSON(dst []byte, before string) []byte {
	dst = jsonread.AppendText(append(dst, `{"revision":`...), r.Revision)
	dst = r.At.UTC().AppendFormat(append(dst, `,"updateTimestamp":"`...), time.RFC3339)
	dst = append(dst, `","lastContainerStatuses":{`...)
	for _, c := range r.ImageIDs {
		status := []byte(`{}`)
		if c.ImageID != "" {
			status = append(jsonread.AppendText([]byte(`{"imageID":`), c.ImageID), '}')
		}
		dst = appendMember(dst, c.Container, string(status))
	}
	var others []byte
	if before != "" && before[0] == '{' {
		for member, value := range jsonread.Members(before) {
			switch member {
			case "revision", "updateTimestamp":
			case "lastContainerStatuses":
				dst = r.appendOthers(dst, value)
			default:
				others = appendMember(append(others, ','), member, value)
			}
		}
	}
	return append(append(append(dst, '}'), others...), '}')
}

// appendOthers appends what was recorded of containers that do not change now.
func (r *UpdateRecord) appendOthers(dst []byte, statuses string) []byte {
	if statuses[0] != '{' {
		return dst
	}
	for container, status := range jsonread.Members(statuses) {
		if !slices.ContainsFunc(r.ImageIDs, func(c ContainerImageID) bool { return c.Container == container }) {
			dst = appendMember(dst, container, status)
		}
	}
	return dst
}

// appendMember appends a member to an object whose end is not written.
func appendMember(dst []byte, name, value string) []byte {
	if last := len(dst) - 1; last >= 0 && dst[last] != '{' && dst[last] != ',' {
		dst = append(dst, ',')
	}
	return append(append(jsonread.AppendText(dst, name), ':'), value...)
}
