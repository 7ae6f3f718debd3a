package inplace

import (
	"errors"
	"maps"
	"time"

	"github.com/go-json-experiment/json"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Mark records one SidecarSet's last update of a Pod in place.
type Mark struct {
	// Generation is the metadata.generation that the Pod has after the write.
	Generation int64 `json:"generation"`
	// At is when the patch was sent, to the second.
	At time.Time `json:"at"`
	// WasReady: the Pod was available before the operator updated it.
	WasReady bool `json:"wasReady"`
	// Containers are those that got another image, by name, as they were when the
	// patch was sent. It is empty if no container had to change.
	Containers map[string]Before `json:"containers"`
}

// Before is what a container was before its image changed.
type Before struct {
	// ID is the containerID that the status reported, "" if it reported none.
	ID string `json:"id"`
	// Image is the name of the image that it was started from, "" if that is not
	// known for certain. The kubelet does not replace a container whose image is
	// changed and changed back before the kubelet acts.
	Image string `json:"image,omitempty"`
	// Since are the images that the container was given after Image. If Image is not known,
	// the container was started from one of Since, or from any image if Since is empty.
	Since []string `json:"since,omitempty"`
	// Digest identifies the image that ran, "" if that is not known for certain.
	Digest string `json:"digest,omitempty"`
}

// Marks is the value of the annotation sidecarset.io/in-place. It is a value: the maps are not
// changed; With and Keep return a changed copy. The zero value has no Marks.
type Marks struct {
	// Sets has the Marks of one Pod by SidecarSet.
	Sets map[string]Mark
	// Resizes has the resizes that are under way, by SidecarSet.
	Resizes map[string]Sizes
}

// Bounds of the annotation, whose value the Pod's author can write.
const (
	maxValueBytes = 64 << 10
	maxEntries    = 256 // SidecarSets and containers together
)

// errUnreadable is the error of all values that cannot be read. It does not say what
// exactly is wrong, because that is of no use to users: the operator writes no such values.
var errUnreadable = errors.New("annotation " + appsv1beta1.AnnotationInPlace + " cannot be read: it is damaged, too long, or of another version")

// MarksOf reads a Pod's annotation. A Pod without it has no Marks. A record that was copied
// from another Pod is about that Pod, and is ignored. After an error, earlier updates are
// unknown, and the Pod must not be written.
func MarksOf(pod *corev1.Pod) (Marks, error) {
	value, ok := pod.Annotations[appsv1beta1.AnnotationInPlace]
	if !ok {
		return Marks{}, nil
	}
	r := reader{uid: pod.UID}
	if !r.read(value) {
		return Marks{}, errUnreadable
	}
	return r.marks, nil
}

// With returns a copy that has the given Mark of a SidecarSet.
func (m Marks) With(sidecarSet string, mark Mark) Marks {
	mark.At = mark.At.UTC()
	return Marks{put(m.Sets, sidecarSet, mark), m.Resizes}
}

// put returns a copy in which the SidecarSet has the given value.
func put[T any](values map[string]T, sidecarSet string, value T) map[string]T {
	more := make(map[string]T, len(values)+1)
	maps.Copy(more, values)
	more[sidecarSet] = value
	return more
}

// Keep returns a copy that has only the Marks and Sizes of SidecarSets that keep
// accepts.
func (m Marks) Keep(keep func(sidecarSet string) bool) Marks {
	marks, sizes := maps.Clone(m.Sets), maps.Clone(m.Resizes)
	maps.DeleteFunc(marks, func(set string, _ Mark) bool { return !keep(set) })
	maps.DeleteFunc(sizes, func(set string, _ Sizes) bool { return !keep(set) })
	return Marks{marks, sizes}
}

// Format renders the annotation's value for the Pod with that UID.
func (m Marks) Format(pod types.UID) string {
	out := marksJSON{V: 1, UID: pod, Sets: m.Sets, Resizes: make(map[string]sizesJSON, len(m.Resizes))}
	for set, sizes := range m.Resizes {
		out.Resizes[set] = sizes.json()
	}
	text, _ := json.Marshal(out, json.Deterministic(true)) // texts, numbers and times of four-digit years always marshal
	return string(text)
}

// marksJSON is the annotation.
type marksJSON struct {
	V       int                  `json:"v"`
	UID     types.UID            `json:"uid"`
	Sets    map[string]Mark      `json:"sets"`
	Resizes map[string]sizesJSON `json:"resizes,omitempty"`
}
