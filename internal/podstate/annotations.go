// Package podstate knows what is recorded on Pods: it is the only reader and
// writer of the annotations that say which SidecarSets a Pod carries and at
// which revision. It refuses to know where Pods come from and what follows
// from a record.
package podstate

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/sidecarset/operator/internal/jsonread"
)

// HashEntry is what one SidecarSet records in a Pod's hash annotation.
type HashEntry struct {
	// UpdateTimestamp is kept to the second, in UTC; zero is written as null.
	UpdateTimestamp time.Time
	// Hash is the content hash that the Pod was given.
	Hash string
	// SidecarSetName is the name of the SidecarSet, the key of the entry.
	SidecarSetName string
	// SidecarList names the sidecars, sorted; nil is written as null.
	SidecarList []string
	// ControllerRevision is left out when empty.
	ControllerRevision string
}

// Hashes is the value of a hash annotation: one entry per SidecarSet. It is a
// value: With and Keep return a changed copy. The zero value is empty.
type Hashes struct {
	entries []recordedEntry // sorted by name, each name once
}

// recordedEntry is one entry as it was written, so that members that this build
// does not know survive.
type recordedEntry struct {
	name, hash string
	revision   string // the ControllerRevision, "" if it names none
	raw        string
}

// ParseHashes reads the value of a hash annotation: the struct form, and the
// legacy form {"<sidecarset>":"<hash>"}, whose entries count as struct entries
// of that hash and nothing else. What cannot be read is left out; a value that
// is not a JSON object, or is beyond the bounds of this package, gives no
// entries.
func ParseHashes(value string) Hashes {
	if value == "" || len(value) > maxValueBytes {
		return Hashes{}
	}
	if !readable(value) {
		return Hashes{}
	}
	var read []recordedEntry // in the order of the value, with entries that make no sense
	for name, raw := range members(value) {
		if len(read) == maxEntries {
			return Hashes{}
		}
		read = append(read, parseEntry(name, raw))
	}
	senseless := func(e recordedEntry) bool { return e.raw == "" }
	entries := slices.DeleteFunc(lastOfEachName(read), senseless)
	return Hashes{entries: entries}
}

// parseEntry reads one member of a hash annotation. One that makes no sense has
// no raw text.
func parseEntry(name, raw string) recordedEntry {
	switch raw[0] {
	case '"':
		return newEntry(HashEntry{SidecarSetName: name, Hash: unquote(raw)})
	case '{':
		var hash, revision string
		readable := true
		for member, value := range members(raw) { // the last of several counts
			switch member {
			case "controllerRevision":
				revision, _ = parseString(value)
			case "hash":
				hash, readable = parseString(value)
			}
		}
		if readable {
			return recordedEntry{name: name, hash: hash, revision: revision, raw: raw}
		}
	}
	return recordedEntry{name: name}
}

// parseString reads a string, or a null that stands for the empty one.
func parseString(raw string) (string, bool) {
	if raw[0] != '"' {
		return "", raw == "null"
	}
	return unquote(raw), true
}

func newEntry(e HashEntry) recordedEntry {
	size := len(`{"updateTimestamp":"2006-01-02T15:04:05Z","hash":"","sidecarSetName":"","sidecarList":[],"controllerRevision":""}`) +
		len(e.Hash) + len(e.SidecarSetName) + len(e.ControllerRevision)
	for _, name := range e.SidecarList {
		size += len(name) + len(`"",`)
	}
	return recordedEntry{name: e.SidecarSetName, hash: e.Hash, revision: e.ControllerRevision, raw: string(e.appendJSON(make([]byte, 0, size)))}
}

// Hash returns the hash recorded for a SidecarSet, "" if there is none.
func (h Hashes) Hash(sidecarSet string) string {
	if i, ok := h.find(sidecarSet); ok {
		return h.entries[i].hash
	}
	return ""
}

// Revision returns the name of the ControllerRevision recorded for a SidecarSet,
// "" if there is none.
func (h Hashes) Revision(sidecarSet string) string {
	if i, ok := h.find(sidecarSet); ok {
		return h.entries[i].revision
	}
	return ""
}

// Has says whether a SidecarSet has an entry.
func (h Hashes) Has(sidecarSet string) bool {
	_, ok := h.find(sidecarSet)
	return ok
}

// UpdatedAt returns when a SidecarSet's entry was written; zero if it does not say.
func (h Hashes) UpdatedAt(sidecarSet string) (at time.Time) {
	i, ok := h.find(sidecarSet)
	if !ok {
		return at
	}
	for member, value := range members(h.entries[i].raw) { // the last of several counts
		if member == "updateTimestamp" && json.Unmarshal([]byte(value), &at) != nil {
			at = time.Time{}
		}
	}
	return at
}

// With returns a copy that has the given entries, each in place of one of the
// same name; of several with one name the last counts.
func (h Hashes) With(entries ...HashEntry) Hashes {
	all := make([]recordedEntry, len(h.entries), len(h.entries)+len(entries))
	copy(all, h.entries)
	for _, e := range entries {
		all = append(all, newEntry(e))
	}
	return Hashes{entries: lastOfEachName(all)}
}

// lastOfEachName sorts entries in place and returns the last one of each name.
func lastOfEachName(entries []recordedEntry) []recordedEntry {
	slices.SortStableFunc(entries, func(a, b recordedEntry) int { return strings.Compare(a.name, b.name) })
	last := entries[:0]
	for i, e := range entries {
		if i+1 == len(entries) || entries[i+1].name != e.name {
			last = append(last, e)
		}
	}
	return last
}

// Keep returns a copy that has only the entries whose name keep accepts.
func (h Hashes) Keep(keep func(sidecarSet string) bool) Hashes {
	out := Hashes{entries: make([]recordedEntry, 0, len(h.entries))}
	for _, e := range h.entries {
		if keep(e.name) {
			out.entries = append(out.entries, e)
		}
	}
	return out
}

// String renders the annotation's value: names sorted, entries that were parsed
// as they were written, others with their members in the order of HashEntry.
func (h Hashes) String() string {
	size := 2
	for _, e := range h.entries {
		size += len(e.name) + len(e.raw) + len(`"":,`)
	}
	dst := append(make([]byte, 0, size), '{')
	for i, e := range h.entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonread.AppendText(dst, e.name)
		dst = append(dst, ':')
		dst = append(dst, e.raw...)
	}
	return string(append(dst, '}'))
}

func (h Hashes) find(name string) (int, bool) {
	return slices.BinarySearchFunc(h.entries, name, func(e recordedEntry, name string) int {
		return strings.Compare(e.name, name)
	})
}

func (e HashEntry) appendJSON(dst []byte) []byte {
	dst = append(dst, `{"updateTimestamp":`...)
	if e.UpdateTimestamp.IsZero() {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, '"')
		dst = e.UpdateTimestamp.UTC().AppendFormat(dst, time.RFC3339)
		dst = append(dst, '"')
	}
	dst = jsonread.AppendText(append(dst, `,"hash":`...), e.Hash)
	dst = jsonread.AppendText(append(dst, `,"sidecarSetName":`...), e.SidecarSetName)
	dst = appendList(append(dst, `,"sidecarList":`...), e.SidecarList)
	if e.ControllerRevision != "" {
		dst = jsonread.AppendText(append(dst, `,"controllerRevision":`...), e.ControllerRevision)
	}
	return append(dst, '}')
}

func appendList(dst []byte, names []string) []byte {
	if names == nil {
		return append(dst, "null"...)
	}
	dst = append(dst, '[')
	for i, name := range names {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonread.AppendText(dst, name)
	}
	return append(dst, ']')
}

// ParseInjectedList reads the injected-list annotation: the names, sorted,
// without empty ones and duplicates. A value beyond the bounds of this package
// has none.
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
	if slices.IsSorted(names) {
		return strings.Join(slices.Compact(slices.Clone(names)), ",")
	}
	names = slices.Sorted(slices.Values(names))
	return strings.Join(slices.Compact(names), ",")
}
