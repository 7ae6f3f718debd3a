package inplace

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/jsonread"
)

// Mark records one SidecarSet's last update of a Pod in place.
type Mark struct {
	// Generation is the metadata.generation that the Pod has after the write.
	Generation int64
	// At is when the patch was sent, to the second.
	At time.Time
	// WasReady: the Pod was available before the operator disturbed it.
	WasReady bool
	// Containers are those that got another image, by name, as they were when the
	// patch was sent. It is empty if no container had to change.
	Containers []Before
}

// Before is what a container was before its image changed.
type Before struct {
	Name string
	// ID is the containerID that the status reported, "" if it reported none.
	ID string
	// Image is the name of the image that it was started from, "" if that is not
	// known for certain. The kubelet does not replace a container whose image is
	// changed and changed back before the kubelet acts.
	Image string
	// Since are the images that the container was given after that one. If Image is
	// not known, it was started from one of these; from any if there is none.
	Since []string
	// Digest identifies the image that ran, "" if that is not known for certain.
	Digest string
}

// Marks is the value of the annotation sidecarset.io/in-place: the Marks of one
// Pod by SidecarSet, and the resizes that are under way. It is a value: With and
// Keep return a changed copy. The zero value has none.
type Marks struct {
	entries []entry // sorted by SidecarSet, each once
	sizes   map[string]Sizes
}

type entry struct {
	set  string
	mark Mark
}

// Bounds of the annotation, whose value the Pod's author can write.
const (
	maxValueBytes = 64 << 10
	maxEntries    = 256 // SidecarSets and containers together
)

// errUnreadable is the error of all values that cannot be read. What exactly is
// wrong helps no one: the operator writes no such values.
var errUnreadable = errors.New("annotation " + appsv1beta1.AnnotationInPlace + " cannot be read: it is damaged, too long, or of another version")

// MarksOf reads a Pod's annotation. A Pod without it has no Marks. A record that
// came with a copy of another Pod is about that Pod, and counts as none. An error
// means that nothing is known of earlier updates, and that the Pod must not be
// written.
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

// Of returns the Mark of a SidecarSet.
func (m Marks) Of(sidecarSet string) (Mark, bool) {
	i, ok := m.find(sidecarSet)
	if !ok {
		return Mark{}, false
	}
	return m.entries[i].mark, true
}

// All calls yield for each SidecarSet and its Mark, in name order.
func (m Marks) All(yield func(sidecarSet string, mark Mark) bool) {
	for _, e := range m.entries {
		if !yield(e.set, e.mark) {
			return
		}
	}
}

// With returns a copy that has the given Mark of a SidecarSet.
func (m Marks) With(sidecarSet string, mark Mark) Marks {
	entries := slices.Clone(m.entries)
	i, ok := m.find(sidecarSet)
	if ok {
		entries[i].mark = mark
	} else {
		entries = slices.Insert(entries, i, entry{sidecarSet, mark})
	}
	return Marks{entries, m.sizes}
}

// Keep returns a copy that has only the Marks and Sizes of SidecarSets that keep
// accepts.
func (m Marks) Keep(keep func(sidecarSet string) bool) Marks {
	sizes := maps.Clone(m.sizes)
	maps.DeleteFunc(sizes, func(set string, _ Sizes) bool { return !keep(set) })
	return Marks{slices.DeleteFunc(slices.Clone(m.entries), func(e entry) bool { return !keep(e.set) }), sizes}
}

func (m Marks) find(sidecarSet string) (int, bool) {
	return slices.BinarySearchFunc(m.entries, sidecarSet, func(e entry, name string) int {
		return strings.Compare(e.set, name)
	})
}

// Format renders the annotation's value for the Pod with that UID.
func (m Marks) Format(pod types.UID) string {
	dst := jsonread.AppendText([]byte(`{"v":1,"uid":`), pod)
	dst = append(dst, `,"sets":{`...)
	for i, e := range m.entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(jsonread.AppendText(dst, e.set), ':')
		dst = e.mark.appendJSON(dst)
	}
	dst = append(dst, '}')
	for i, set := range slices.Sorted(maps.Keys(m.sizes)) {
		if dst = append(dst, ','); i == 0 {
			dst = append(dst, `"resizes":{`...)
		}
		dst = m.sizes[set].appendJSON(append(jsonread.AppendText(dst, set), ':'))
	}
	if len(m.sizes) > 0 {
		dst = append(dst, '}')
	}
	return string(append(dst, '}'))
}

func (m Mark) appendJSON(dst []byte) []byte {
	dst = strconv.AppendInt(append(dst, `{"generation":`...), m.Generation, 10)
	dst = m.At.UTC().AppendFormat(append(dst, `,"at":"`...), time.RFC3339)
	dst = strconv.AppendBool(append(dst, `","wasReady":`...), m.WasReady)
	dst = append(dst, `,"containers":{`...)
	for i, c := range m.Containers {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonread.AppendText(dst, c.Name)
		dst = jsonread.AppendText(append(dst, `:{"id":`...), c.ID)
		if c.Image != "" {
			dst = jsonread.AppendText(append(dst, `,"image":`...), c.Image)
		}
		for i, image := range c.Since {
			if dst = append(dst, ','); i == 0 {
				dst = append(dst, `"since":[`...)
			}
			dst = jsonread.AppendText(dst, image)
		}
		if len(c.Since) > 0 {
			dst = append(dst, ']')
		}
		if c.Digest != "" {
			dst = jsonread.AppendText(append(dst, `,"digest":`...), c.Digest)
		}
		dst = append(dst, '}')
	}
	return append(dst, "}}"...)
}
