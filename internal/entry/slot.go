package entry

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/podstate"
)

// Slot is one version of a configuration object, as the operator reads it. It is immutable.
type Slot struct {
	Index int
	// Object must not be changed.
	Object *admissionregistrationv1.MutatingWebhookConfiguration
	// Version is the object's resourceVersion.
	Version uint64
	record
}

// record is what a slot says besides its entries.
type record struct {
	// Serial is the resourceVersion that the operator's last write replaced. So it rises, and
	// never repeats, also where the object was emptied or made anew. It is 0 if the operator
	// has not written the object, or if another program has removed the record.
	Serial uint64 `json:"serial,string"`
	// PathSerial is the Serial of the last write that added or raised a need.
	PathSerial uint64 `json:"number,string"`
	// Earlier are the last serials before Serial, newest first.
	Earlier []uint64 `json:"earlier,omitempty"`
	// Needs are the needs by the names of the entries.
	Needs map[string][]Need `json:"needs,omitempty"`
	// Namespace is the UID, shortened, of the operator's Namespace by which the last writer found the slots
	// of entries. Older versions of the operator leave it out.
	Namespace string `json:"namespace,omitempty"`
	// Excluded are the excluded namespaces that the leader wrote the entries with.
	Excluded []string `json:"excluded,omitempty"`
}

const (
	// annotationRecord holds the record of a slot: a JSON object.
	annotationRecord = "sidecarset.io/slot"
	// AnnotationFormat holds the number of the record's format. An object without it has not
	// been written yet.
	AnnotationFormat = "sidecarset.io/format"
	// format is the newest format that this version of the operator reads. Raise it only if an
	// older version would misread what this one writes.
	format = 2
	// earlier is how many serials before its own a barrier entry answers for: reviews that
	// follow each other soon wait for different serials.
	earlier = 7
)

// ErrFormat says that a newer version of the operator has written a slot. This version does
// not change it, and does not rely on it.
var ErrFormat = errors.New("a newer version of the operator has written it, in a format that this version cannot read")

// Parse reads an object. It fails with ErrFormat, or if the object is not a slot. A record that
// cannot be read counts as removed: another program has edited it.
func Parse(c *admissionregistrationv1.MutatingWebhookConfiguration) (*Slot, error) {
	index, ok := Index(c.Name)
	if !ok {
		return nil, fmt.Errorf("MutatingWebhookConfiguration %s is none of the objects for webhook entries", c.Name)
	}
	if value, ok := c.Annotations[AnnotationFormat]; ok {
		if number, err := strconv.Atoi(value); err != nil || number > format {
			return nil, fmt.Errorf("MutatingWebhookConfiguration %s: %w", c.Name, ErrFormat)
		}
	}
	version, err := podstate.ParseVersion(c.ResourceVersion)
	if err != nil {
		return nil, fmt.Errorf("MutatingWebhookConfiguration %s: %w", c.Name, err)
	}
	s := &Slot{Index: index, Object: c, Version: version}
	// A record of a later version comes from another cluster, with a backup.
	if json.Unmarshal([]byte(c.Annotations[annotationRecord]), &s.record) != nil || s.Serial > version || s.PathSerial > s.Serial {
		s.record = record{}
	}
	return s, nil
}

// Unheld returns the needs that a replica does not hold, of the entries that select a Pod with
// these labels, or of all entries if labels is nil.
func (s *Slot) Unheld(pod labels.Labels, held func(Need) bool) (unheld []Need) {
	for entry, needs := range s.Needs {
		before := len(unheld)
		for _, n := range needs {
			if !held(n) {
				unheld = append(unheld, n)
			}
		}
		if at := find(s.Object, entry); at >= 0 && before < len(unheld) && !selects(&s.Object.Webhooks[at], pod) {
			unheld = unheld[:before]
		}
	}
	return unheld
}

func selects(w *admissionregistrationv1.MutatingWebhook, pod labels.Labels) bool {
	if pod == nil {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(w.ObjectSelector)
	return err != nil || selector.Matches(pod)
}

// Holds reports whether an entry of the slot has a need of the SidecarSet in that generation or
// a later one. So API servers that use the slot call the operator for its Pods.
func (s *Slot) Holds(entry string, n Need) bool {
	return find(s.Object, entry) >= 0 && slices.ContainsFunc(s.Needs[entry], func(has Need) bool { return has.Is(n) && has.Generation >= n.Generation })
}

// Entries returns the names of the Pod entries.
func (s *Slot) Entries() (names []string) {
	for i := range s.Object.Webhooks {
		if w := &s.Object.Webhooks[i]; isPodEntry(w) {
			names = append(names, w.Name)
		}
	}
	return names
}

func isPodEntry(w *admissionregistrationv1.MutatingWebhook) bool {
	return strings.HasSuffix(w.Name, nameSuffix)
}

// Bundle is the CA bundle of the barrier entry; nil if there is none.
func (s *Slot) Bundle() []byte {
	if at := find(s.Object, s.Object.Name+barrierSuffix); at >= 0 {
		return s.Object.Webhooks[at].ClientConfig.CABundle
	}
	return nil
}

// IsEmpty reports whether the object has no webhooks.
func (s *Slot) IsEmpty() bool { return len(s.Object.Webhooks) == 0 }

// Unstored returns the names of the entries of which no need is stored, by what the caller knows;
// see Review.
func (s *Slot) Unstored(stored func(entry string, n Need) bool) (names []string) {
	for _, name := range s.Entries() {
		if !slices.ContainsFunc(s.Needs[name], func(n Need) bool { return stored(name, n) }) {
			names = append(names, name)
		}
	}
	return names
}

// find is the position of an entry by name, -1 if there is none.
func find(c *admissionregistrationv1.MutatingWebhookConfiguration, name string) int {
	for i := range c.Webhooks { // in place: they are large
		if c.Webhooks[i].Name == name {
			return i
		}
	}
	return -1
}

// Editor returns the last field manager of the webhooks of an object besides the operator; "" if
// there is none.
func Editor(c *admissionregistrationv1.MutatingWebhookConfiguration) (manager string) {
	var last metav1.Time
	for _, f := range c.ManagedFields {
		if f.Time != nil && !f.Time.Before(&last) && !strings.HasPrefix(f.Manager, "sidecarset-operator") && f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), `"f:webhooks"`) {
			manager, last = f.Manager, *f.Time
		}
	}
	return manager
}
