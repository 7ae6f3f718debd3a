// Package podstate knows what is recorded on Pods, and what their status says about it. It is
// the only reader and writer of the annotations that say which SidecarSets a Pod has, at
// which revision, and how it was updated in place (inplace.go). It knows when an update is over
// (observe.go, written.go). A Summary (summary.go) is what the leader keeps of a Pod. The package
// does not know where Pods come from, or what follows from a record.
package podstate

import (
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// HashRecord is what one SidecarSet records in a Pod's hash annotation.
type HashRecord struct {
	// UpdateTimestamp is kept to the second, in UTC; zero is written as null.
	UpdateTimestamp time.Time
	// Hash is the hash of the revision that the Pod was given.
	Hash string
	// SidecarSetName is the name of the SidecarSet, the key of the record.
	SidecarSetName string
	// SidecarList names the sidecars, sorted; nil is written as null.
	SidecarList []string
	// ControllerRevision is left out when empty.
	ControllerRevision string
}

// Hashes is the value of a hash annotation: one record per SidecarSet. It is a
// value: With and Keep return a changed copy. The zero value is empty.
type Hashes struct {
	records []hashRecord // sorted by name, each name once
}

// hashRecord is one record as it was written, so that members that this build
// does not know survive.
type hashRecord struct {
	name, hash string
	revision   string // the ControllerRevision, "" if it names none
	raw        string
}

// ParseHashes reads the value of a hash annotation: the struct form, and the
// legacy form {"<sidecarset>":"<hash>"}, whose records have a hash and nothing
// else. Records that cannot be read are left out. A value that is not a JSON
// object, or is beyond the bounds of this package, gives no records.
func ParseHashes(value string) (h Hashes) {
	var all map[string]json.RawMessage
	if value == "" || len(value) > maxValueBytes || json.Unmarshal([]byte(value), &all) != nil || len(all) > maxEntries {
		return h
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		var legacy string
		var record struct {
			Hash               any `json:"hash"`
			ControllerRevision any `json:"controllerRevision"`
		}
		switch raw := all[name]; {
		case raw[0] == '"' && json.Unmarshal(raw, &legacy) == nil:
			h.records = append(h.records, newRecord(HashRecord{SidecarSetName: name, Hash: legacy}))
		case raw[0] == '{' && json.Unmarshal(raw, &record) == nil:
			hash, isText := record.Hash.(string)
			revision, _ := record.ControllerRevision.(string)
			if isText || record.Hash == nil {
				h.records = append(h.records, hashRecord{name, hash, revision, string(raw)})
			}
		}
	}
	return h
}

func newRecord(r HashRecord) hashRecord {
	var at *string
	if !r.UpdateTimestamp.IsZero() {
		at = new(r.UpdateTimestamp.UTC().Format(time.RFC3339))
	}
	return hashRecord{r.SidecarSetName, r.Hash, r.ControllerRevision, string(marshal(struct {
		UpdateTimestamp    *string  `json:"updateTimestamp"`
		Hash               string   `json:"hash"`
		SidecarSetName     string   `json:"sidecarSetName"`
		SidecarList        []string `json:"sidecarList"`
		ControllerRevision string   `json:"controllerRevision,omitempty"`
	}{at, r.Hash, r.SidecarSetName, r.SidecarList, r.ControllerRevision}))}
}

// Hash returns the hash recorded for a SidecarSet, "" if there is none.
func (h Hashes) Hash(sidecarSet string) string {
	r, _ := h.find(sidecarSet)
	return r.hash
}

// Revision returns the name of the ControllerRevision recorded for a SidecarSet,
// "" if there is none.
func (h Hashes) Revision(sidecarSet string) string {
	r, _ := h.find(sidecarSet)
	return r.revision
}

// Has reports whether a SidecarSet has a record.
func (h Hashes) Has(sidecarSet string) bool {
	_, ok := h.find(sidecarSet)
	return ok
}

// UpdatedAt returns when a SidecarSet's record was written; zero if the record has no time.
func (h Hashes) UpdatedAt(sidecarSet string) time.Time {
	var record struct {
		UpdateTimestamp time.Time `json:"updateTimestamp"`
	}
	if r, ok := h.find(sidecarSet); !ok || json.Unmarshal([]byte(r.raw), &record) != nil {
		return time.Time{}
	}
	return record.UpdateTimestamp
}

// Empty reports whether there are no records.
func (h Hashes) Empty() bool { return len(h.records) == 0 }

// Sidecars yields the SidecarSets that have a record, in name order, each with its
// SidecarList. A record without a list, or with one that cannot be read, is left out.
func (h Hashes) Sidecars() iter.Seq2[string, []string] {
	return func(yield func(sidecarSet string, sidecars []string) bool) {
		for _, r := range h.records {
			var record struct {
				SidecarList []string `json:"sidecarList"`
			}
			if json.Unmarshal([]byte(r.raw), &record) == nil && len(record.SidecarList) > 0 && !yield(r.name, record.SidecarList) {
				return
			}
		}
	}
}

// With returns a copy that has the given records. Each replaces the record of the same name.
// If several of the given records have one name, the last one counts.
func (h Hashes) With(records ...HashRecord) Hashes {
	all := make([]hashRecord, len(h.records), len(h.records)+len(records))
	copy(all, h.records)
	for _, r := range records {
		if i, found := find(all, r.SidecarSetName); found {
			all[i] = newRecord(r)
		} else {
			all = slices.Insert(all, i, newRecord(r))
		}
	}
	return Hashes{records: all}
}

// Keep returns a copy that has only the records whose name keep accepts.
func (h Hashes) Keep(keep func(sidecarSet string) bool) Hashes {
	return Hashes{slices.DeleteFunc(slices.Clone(h.records), func(r hashRecord) bool { return !keep(r.name) })}
}

// String renders the annotation's value: names sorted, records that were parsed
// as they were written, others with their members in the order of HashRecord.
func (h Hashes) String() string {
	dst := []byte{'{'}
	for i, r := range h.records {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, marshal(r.name)...), ':'), r.raw...)
	}
	return string(append(dst, '}'))
}

func (h Hashes) find(name string) (r hashRecord, ok bool) {
	i, ok := find(h.records, name)
	if ok {
		r = h.records[i]
	}
	return r, ok
}

// find returns the place of a name in records that are sorted by it.
func find(records []hashRecord, name string) (int, bool) {
	return slices.BinarySearchFunc(records, name, func(r hashRecord, name string) int { return strings.Compare(r.name, name) })
}

// ParseInjectedList reads the injected-list annotation: the names, sorted, without empty names
// and duplicates. A value beyond the bounds of this package gives no names.
func ParseInjectedList(value string) []string {
	if value == "" || tooManyNames(value) {
		return nil
	}
	names := strings.Split(value, ",")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	slices.Sort(names)
	return slices.Compact(names)
}

// JoinInjectedList renders the injected-list annotation: sorted, without
// duplicates, joined by commas. The argument is not changed.
func JoinInjectedList(names []string) string {
	names = slices.Clone(names)
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ",")
}

// The creator of a Pod writes its annotations: up to 3 MiB of them reach admission, and 256 KiB
// reach storage. This package treats a value beyond these bounds as unreadable. No operator
// writes such a value: 256 SidecarSets in one Pod need 64 KiB for their names alone if each
// has 253 characters, and half of that for usual hash records.
const (
	maxValueBytes = 64 << 10
	maxEntries    = 256
)

// tooManyNames reports whether a list joined by commas has more names than are read.
func tooManyNames(list string) bool {
	return len(list) > maxValueBytes || countNames(list) > maxEntries
}

// countNames is how many names a list joined by commas has, empty ones included.
func countNames(list string) int { return strings.Count(list, ",") + 1 }

// ChoseCurrent is the choice of the current revision over a recorded revision.
// No ControllerRevision can have that name.
const ChoseCurrent = "Current"

// ParseTexts reads an annotation that maps names to texts. It returns nil if the value is absent
// or unreadable. A null counts as the empty string. Two annotations have this form: the random
// choices between revisions (by SidecarSet, the name of the ControllerRevision that the Pod was
// given, or ChoseCurrent), and the containers that do the work of hot-upgrade sidecars.
func ParseTexts(value string) map[string]string {
	if value == "" || len(value) > maxValueBytes {
		return nil
	}
	var texts map[string]string
	if json.Unmarshal([]byte(value), &texts) != nil || len(texts) > maxEntries {
		return nil
	}
	return texts
}

// FormatTexts renders what ParseTexts reads, names sorted.
func FormatTexts(texts map[string]string) string {
	text, _ := json.Marshal(texts) // a map of strings always marshals
	return string(text)
}

// ParseObjects reads an annotation that maps names to JSON values, such as the resources that
// policies have computed, by container. It returns an empty map if the value is absent or
// unreadable.
func ParseObjects(value string) map[string]json.RawMessage {
	var objects map[string]json.RawMessage
	if len(value) > maxValueBytes || json.Unmarshal([]byte(value), &objects) != nil || objects == nil || len(objects) > maxEntries {
		return map[string]json.RawMessage{}
	}
	return objects
}

// FormatObjects renders what ParseObjects reads, names sorted.
func FormatObjects(objects map[string]json.RawMessage) string { return string(marshal(objects)) }

// Upgradable is what a Pod's condition SidecarSetUpgradable says about a SidecarSet.
type Upgradable uint8

// What the condition can say.
const (
	Unsaid Upgradable = iota
	IsUpgradable
	NotUpgradable
)

// upgradableOf reads the condition's message, {"<SidecarSet>":true|false}. An unreadable
// message has no values.
func upgradableOf(pod *corev1.Pod) map[string]Upgradable {
	var values map[string]any
	c := Condition(pod, appsv1beta1.PodConditionUpgradable)
	if c == nil || len(c.Message) > maxValueBytes || json.Unmarshal([]byte(c.Message), &values) != nil || len(values) > maxEntries {
		return nil
	}
	said := make(map[string]Upgradable, len(values))
	for name, value := range values {
		switch value {
		case true:
			said[name] = IsUpgradable
		case false:
			said[name] = NotUpgradable
		}
	}
	return said
}

// AnnotationEdits are the annotations of a Pod, and those that are to be written. Planned is nil if none
// are.
type AnnotationEdits struct{ Has, Planned map[string]string }

// Get returns a value of the Pod as planned so far.
func (a *AnnotationEdits) Get(key string) (string, bool) {
	if value, planned := a.Planned[key]; planned {
		return value, true
	}
	value, present := a.Has[key]
	return value, present
}

// Set plans a value, unless the Pod has it.
func (a *AnnotationEdits) Set(key, value string) {
	if has, present := a.Has[key]; present && has == value {
		delete(a.Planned, key)
		return
	}
	if a.Planned == nil {
		a.Planned = make(map[string]string, 4)
	}
	a.Planned[key] = value
}
