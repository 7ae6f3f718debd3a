// Package podstate knows what is recorded on Pods: it is the only reader and writer of the
// annotations that say which SidecarSets a Pod carries and at which revision. It does not know
// where Pods come from, or what follows from a record.
package podstate

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/sidecarset/operator/internal/jsonread"
)

// HashRecord is what one SidecarSet records in a Pod's hash annotation.
type HashRecord struct {
	// UpdateTimestamp is kept to the second, in UTC; zero is written as null.
	UpdateTimestamp time.Time
	// Hash is the content hash that the Pod was given.
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
func ParseHashes(value string) Hashes {
	if value == "" || !readable(value) {
		return Hashes{}
	}
	var read []hashRecord // in the order of the value, unreadable records included
	for name, raw := range jsonread.Members(value) {
		if len(read) == maxEntries {
			return Hashes{}
		}
		read = append(read, parseRecord(name, raw))
	}
	senseless := func(r hashRecord) bool { return r.raw == "" }
	records := slices.DeleteFunc(lastOfEachName(read), senseless)
	return Hashes{records: records}
}

// parseRecord reads one member of a hash annotation. An unreadable record has no raw text.
func parseRecord(name, raw string) hashRecord {
	switch raw[0] {
	case '"':
		return newRecord(HashRecord{SidecarSetName: name, Hash: jsonread.Unquote(raw)})
	case '{':
		var hash, revision string
		readable := true
		for member, value := range jsonread.Members(raw) { // if a member is repeated, the last one counts
			switch member {
			case "controllerRevision":
				revision, _ = parseString(value)
			case "hash":
				hash, readable = parseString(value)
			}
		}
		if readable {
			return hashRecord{name: name, hash: hash, revision: revision, raw: raw}
		}
	}
	return hashRecord{name: name}
}

// parseString reads a string. A null counts as the empty string.
func parseString(raw string) (string, bool) {
	if raw[0] != '"' {
		return "", raw == "null"
	}
	return jsonread.Unquote(raw), true
}

func newRecord(r HashRecord) hashRecord {
	size := len(`{"updateTimestamp":"2006-01-02T15:04:05Z","hash":"","sidecarSetName":"","sidecarList":[],"controllerRevision":""}`) +
		len(r.Hash) + len(r.SidecarSetName) + len(r.ControllerRevision)
	for _, name := range r.SidecarList {
		size += len(name) + len(`"",`)
	}
	return hashRecord{name: r.SidecarSetName, hash: r.Hash, revision: r.ControllerRevision, raw: string(r.appendJSON(make([]byte, 0, size)))}
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
func (h Hashes) UpdatedAt(sidecarSet string) (at time.Time) {
	r, ok := h.find(sidecarSet)
	if !ok {
		return at
	}
	for member, value := range jsonread.Members(r.raw) { // if a member is repeated, the last one counts
		if member == "updateTimestamp" && json.Unmarshal([]byte(value), &at) != nil {
			at = time.Time{}
		}
	}
	return at
}

// With returns a copy that has the given records. Each replaces the record of the same name.
// If several of the given records have one name, the last one counts.
func (h Hashes) With(records ...HashRecord) Hashes {
	all := make([]hashRecord, len(h.records), len(h.records)+len(records))
	copy(all, h.records)
	for _, r := range records {
		all = append(all, newRecord(r))
	}
	return Hashes{records: lastOfEachName(all)}
}

// lastOfEachName sorts records in place and returns the last one of each name.
func lastOfEachName(records []hashRecord) []hashRecord {
	slices.SortStableFunc(records, func(a, b hashRecord) int { return strings.Compare(a.name, b.name) })
	last := records[:0]
	for i, r := range records {
		if i+1 == len(records) || records[i+1].name != r.name {
			last = append(last, r)
		}
	}
	return last
}

// Keep returns a copy that has only the records whose name keep accepts.
func (h Hashes) Keep(keep func(sidecarSet string) bool) Hashes {
	return Hashes{slices.DeleteFunc(slices.Clone(h.records), func(r hashRecord) bool { return !keep(r.name) })}
}

// String renders the annotation's value: names sorted, records that were parsed
// as they were written, others with their members in the order of HashRecord.
func (h Hashes) String() string {
	size := 2
	for _, r := range h.records {
		size += len(r.name) + len(r.raw) + len(`"":,`)
	}
	dst := append(make([]byte, 0, size), '{')
	for _, r := range h.records {
		dst = appendMember(dst, r.name, r.raw)
	}
	return string(append(dst, '}'))
}

func (h Hashes) find(name string) (r hashRecord, ok bool) {
	i, ok := slices.BinarySearchFunc(h.records, name, func(r hashRecord, name string) int {
		return strings.Compare(r.name, name)
	})
	if ok {
		r = h.records[i]
	}
	return r, ok
}

func (r HashRecord) appendJSON(dst []byte) []byte {
	dst = append(dst, `{"updateTimestamp":`...)
	if r.UpdateTimestamp.IsZero() {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, '"')
		dst = r.UpdateTimestamp.UTC().AppendFormat(dst, time.RFC3339)
		dst = append(dst, '"')
	}
	dst = jsonread.AppendText(append(dst, `,"hash":`...), r.Hash)
	dst = jsonread.AppendText(append(dst, `,"sidecarSetName":`...), r.SidecarSetName)
	dst = appendList(append(dst, `,"sidecarList":`...), r.SidecarList)
	if r.ControllerRevision != "" {
		dst = jsonread.AppendText(append(dst, `,"controllerRevision":`...), r.ControllerRevision)
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
