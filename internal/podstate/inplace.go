package podstate

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// InPlaceRecord records one SidecarSet's last update of a Pod in place.
type InPlaceRecord struct {
	// Hash is that of the revision that the Pod got; "": that of the Pod's hash record.
	Hash string
	// Generation is the metadata.generation that the Pod has after the write.
	Generation int64
	// At is when the patch was sent, by the leader's clock, to the second.
	At time.Time
	// StateBefore is how the Pod was when it was written.
	StateBefore StateBefore
	// Containers are those that got another image, by name, as they were when the
	// patch was sent. It is empty if no container had to change.
	Containers map[string]Before
}

// inPlaceRecordJSON is an InPlaceRecord in the annotation.
type inPlaceRecordJSON struct {
	Hash        string            `json:"hash,omitempty"`
	Generation  int64             `json:"generation"`
	At          time.Time         `json:"at"`
	StateBefore string            `json:"stateBefore"`
	Containers  map[string]Before `json:"containers"`
}

// MarshalJSON writes the form of the annotation.
func (e InPlaceRecord) MarshalJSON() ([]byte, error) {
	return json.Marshal(inPlaceRecordJSON{e.Hash, e.Generation, e.At, stateNames[e.StateBefore], e.Containers})
}

// UnmarshalJSON reads the form of the annotation.
func (e *InPlaceRecord) UnmarshalJSON(text []byte) error {
	var in inPlaceRecordJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	state := slices.Index(stateNames[:], in.StateBefore)
	if state < 0 {
		return errUnreadable
	}
	*e = InPlaceRecord{in.Hash, in.Generation, in.At, StateBefore(state), in.Containers}
	return nil
}

// Before is what a container was before its image changed.
type Before struct {
	// ID is the containerID that the status reported, "" if it reported none.
	ID string `json:"id"`
	// Restarts is the restartCount that the status reported.
	Restarts int32 `json:"restarts,omitempty"`
	// Image is the name of the image that it was started from, "" if that is not
	// known for certain. The kubelet does not replace a container whose image is
	// changed and changed back before the kubelet acts.
	Image string `json:"image,omitempty"`
	// Digest identifies the image that ran, "" if that is not known.
	Digest string `json:"digest,omitempty"`
}

// Resize records that a resize of a Pod for one SidecarSet is under way. It is written before
// the resize, because the subresource resize does not change annotations. The write that
// records the revision removes it.
type Resize struct {
	// Hash is the hash without images of the revision whose resources the Pod gets.
	Hash string `json:"hash"`
	// Before is that of the revision to which an earlier resize was, if the Pod may still have
	// its resources: the user has corrected values for which its node has no room, for example.
	Before string `json:"before,omitempty"`
	// Generation is the metadata.generation that the Pod has after the resize.
	Generation int64 `json:"generation"`
	// At is when the record was written, to the second.
	At time.Time `json:"at"`
	// WasReady: the Pod was Ready, or an earlier write of the operator had taken it down.
	WasReady bool `json:"wasReady"`
	// Containers are those that get other resources.
	Containers []string `json:"containers"`
}

// InPlaceRecords is the value of the annotation sidecarset.io/in-place. It is a value: the maps are
// not changed; With and Keep return a changed copy. The zero value is empty.
type InPlaceRecords struct {
	// Sets has the InPlaceRecords of one Pod by SidecarSet.
	Sets map[string]InPlaceRecord
	// Resizes has the resizes that are under way, by SidecarSet.
	Resizes map[string]Resize
}

// entriesJSON is the annotation.
type entriesJSON struct {
	V       int                      `json:"v"`
	UID     types.UID                `json:"uid"`
	Sets    map[string]InPlaceRecord `json:"sets"`
	Resizes map[string]Resize        `json:"resizes,omitempty"`
}

// errUnreadable is the error of all values that cannot be read. It does not say what
// exactly is wrong, because that is of no use to users: the operator writes no such values.
var errUnreadable = errors.New("annotation " + appsv1beta1.AnnotationInPlace + " cannot be read: it is damaged, too long, or of another version")

// InPlaceRecordsOf reads a Pod's annotation. A Pod without it has no InPlaceRecords. A record that was copied
// from another Pod is about that Pod, and is ignored. After an error, earlier updates are
// unknown, and the Pod must not be written.
func InPlaceRecordsOf(pod *corev1.Pod) (InPlaceRecords, error) {
	value, ok := pod.Annotations[appsv1beta1.AnnotationInPlace]
	if !ok {
		return InPlaceRecords{}, nil
	}
	var in entriesJSON
	if len(value) > maxValueBytes || json.Unmarshal([]byte(value), &in) != nil || in.V != 1 || !in.isSensible() {
		return InPlaceRecords{}, errUnreadable
	}
	if in.UID != pod.UID {
		return InPlaceRecords{}, nil
	}
	return InPlaceRecords{in.Sets, in.Resizes}, nil
}

// isSensible reports whether the operator can have written these entries.
func (in *entriesJSON) isSensible() bool {
	entries := len(in.Sets) + len(in.Resizes)
	for _, e := range in.Sets {
		if entries += len(e.Containers); e.Generation < 0 || !isTime(e.At) {
			return false
		}
	}
	for _, z := range in.Resizes {
		if entries += len(z.Containers); z.Generation < 0 || !isTime(z.At) {
			return false
		}
	}
	return entries <= maxEntries
}

// isTime reports whether the operator can have written this time.
func isTime(at time.Time) bool { return at.Unix() > 0 && at.UTC().Year() <= 9999 }

// With returns a copy that has the given InPlaceRecord of a SidecarSet, and no resize of it.
func (es InPlaceRecords) With(sidecarSet string, e InPlaceRecord) InPlaceRecords {
	es = es.Keep(func(string) bool { return true })
	es.Sets[sidecarSet] = e
	delete(es.Resizes, sidecarSet)
	return es
}

// WithResize returns a copy that has a resize of a SidecarSet under way.
func (es InPlaceRecords) WithResize(sidecarSet string, z Resize) InPlaceRecords {
	es = es.Keep(func(string) bool { return true })
	es.Resizes[sidecarSet] = z
	return es
}

// Keep returns a copy that is only about the SidecarSets that keep accepts.
func (es InPlaceRecords) Keep(keep func(sidecarSet string) bool) InPlaceRecords {
	kept := InPlaceRecords{make(map[string]InPlaceRecord, len(es.Sets)+1), make(map[string]Resize, len(es.Resizes)+1)}
	maps.Copy(kept.Sets, es.Sets)
	maps.Copy(kept.Resizes, es.Resizes)
	maps.DeleteFunc(kept.Sets, func(set string, _ InPlaceRecord) bool { return !keep(set) })
	maps.DeleteFunc(kept.Resizes, func(set string, _ Resize) bool { return !keep(set) })
	return kept
}

// Of returns the InPlaceRecord of a SidecarSet's last update of the Pod, nil if there is none or if it is
// about another revision than the Pod has: another operator has updated the Pod since.
// OpenKruise writes the time of its update into the hash record, and knows nothing of InPlaceRecords.
func (es InPlaceRecords) Of(sidecarSet string, hashes Hashes) *InPlaceRecord {
	e, ok := es.Sets[sidecarSet]
	if !ok || e.At.Before(hashes.UpdatedAt(sidecarSet)) || e.Hash != "" && e.Hash != hashes.Hash(sidecarSet) {
		return nil
	}
	return &e
}

// Format renders the annotation's value for the Pod with that UID.
func (es InPlaceRecords) Format(pod types.UID) string {
	return string(marshal(entriesJSON{V: 1, UID: pod, Sets: es.Sets, Resizes: es.Resizes}))
}

// Change is one container that an update gives another image.
type Change struct {
	Container string
	Kind      Kind
	From, To  string
}

// Write is an update that is about to be written to a Pod for one SidecarSet.
type Write struct {
	// Pod as it was read. The write has its resourceVersion as a precondition.
	Pod *corev1.Pod
	// Hash is that of the revision that the Pod gets, and StateBefore how the Pod is.
	Hash        string
	StateBefore StateBefore
	// Previous is the SidecarSet's InPlaceRecord of the Pod, nil if there is none.
	Previous *InPlaceRecord
	// Resize is the resize that the write completes or gives up, nil if there is none.
	Resize *Resize
	// Changes are the containers that get another image.
	Changes []Change
	Now     time.Time
}

// NewInPlaceRecord returns the record of a Write. A container that an earlier write changed is still
// recorded if it has not been started again since, and in a write of annotations alone until the
// earlier write is carried out.
func NewInPlaceRecord(w Write) InPlaceRecord {
	e := InPlaceRecord{Hash: w.Hash, Generation: w.Pod.Generation, At: w.at(), StateBefore: w.StateBefore, Containers: map[string]Before{}}
	if len(w.Changes) > 0 { // a write of annotations alone makes no generation
		e.Generation++
	}
	previous := InPlaceRecord{}
	if w.Previous != nil {
		previous = *w.Previous
	}
	last := previous.Observe(w.Pod)
	inFlight := len(w.Changes) == 0 && !(last.Up && last.IsCarriedOut(w.Now.Unix()))
	for name, before := range previous.Containers {
		if _, status := ContainerOf(w.Pod, name); inFlight || !before.replaced(status) {
			e.Containers[name] = before
		}
	}
	for i := range w.Changes {
		if c := &w.Changes[i]; c.Kind != Plain {
			e.Containers[c.Container] = w.before(c, previous)
		}
	}
	return e
}

// NewResize returns the record of a resize of these containers to the resources of the revision
// with this hash without images. The resize is the next write of the Pod's spec.
func NewResize(w Write, hash string, containers []string) Resize {
	z := Resize{Hash: hash, Generation: w.Pod.Generation + 1, At: w.at(), WasReady: w.StateBefore != WasNotReady}
	if earlier := w.Resize; earlier != nil {
		containers, z.Before = slices.Concat(containers, earlier.Containers), earlier.Before
		if earlier.Hash != hash && earlier.made(w.Pod) {
			z.Before = earlier.Hash
		}
	}
	z.Containers = slices.Compact(slices.Sorted(slices.Values(containers)))
	return z
}

func (w *Write) at() time.Time { return w.Now.UTC().Truncate(time.Second) }

// before returns the present state of a container. If an earlier update changed it too, the
// kubelet may start the image of that update at any moment, or have started it. So it may if
// OpenKruise has updated the Pod, of which only a note is left.
func (w *Write) before(c *Change, previous InPlaceRecord) Before {
	_, status := ContainerOf(w.Pod, c.Container)
	if status == nil {
		return Before{}
	}
	now := Before{ID: status.ContainerID, Restarts: status.RestartCount, Digest: digestOf(status.ImageID)}
	earlier, changed := previous.Containers[c.Container]
	_, elsewhere := w.Pod.Annotations[appsv1beta1.AnnotationInPlaceUpdateState]
	elsewhere = elsewhere && w.Previous == nil
	switch {
	case changed && !earlier.replaced(status):
		now.Image, now.Digest = earlier.Image, earlier.Digest
	case !changed && !elsewhere, sameImage(status.Image, c.From):
		now.Image = c.From
	}
	return now
}
