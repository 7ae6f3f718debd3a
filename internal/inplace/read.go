package inplace

import (
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/jsonread"
)

// reader reads one annotation, all of it or nothing.
type reader struct {
	uid     types.UID
	marks   Marks
	entries int
}

func (r *reader) read(value string) (ok bool) {
	if len(value) > maxValueBytes || !jsonread.IsObject(value) {
		return false
	}
	uid, sets, resizes := "", "", "{}"
	current := false
	for name, raw := range jsonread.Members(value) {
		switch name {
		case "v":
			current = raw == "1"
		case "uid":
			if raw[0] != '"' {
				return false
			}
			uid = jsonread.Unquote(raw)
		case "sets":
			sets = raw
		case "resizes":
			resizes = raw
		}
	}
	if !current || !isObject(sets) || !isObject(resizes) {
		return false
	}
	if uid != string(r.uid) {
		return true // the record of another Pod
	}
	if r.marks.Sets, ok = each(r, sets, r.mark); ok {
		r.marks.Resizes, ok = each(r, resizes, r.sizes)
	}
	return ok
}

// each reads the members of an object. It fails if a member is not an object or is present
// twice, or if there are more entries than the bound.
func each[T any](r *reader, object string, read func(raw string) (T, bool)) (map[string]T, bool) {
	all := map[string]T{}
	for name, raw := range jsonread.Members(object) {
		if _, twin := all[name]; twin || !isObject(raw) || !r.count() {
			return nil, false
		}
		value, ok := read(raw)
		if !ok {
			return nil, false
		}
		all[name] = value
	}
	return all, true
}

func (r *reader) mark(raw string) (mark Mark, ok bool) {
	var in struct {
		Mark
		Containers jsontext.Value `json:"containers"`
	}
	if json.Unmarshal([]byte(raw), &in, jsontext.AllowDuplicateNames(true)) != nil || in.Generation < 0 || !isTime(in.At) {
		return mark, false
	}
	mark, mark.At = in.Mark, in.At.UTC()
	if in.Containers == nil {
		return mark, true
	}
	if !isObject(string(in.Containers)) {
		return mark, false
	}
	containers, ok := each(r, string(in.Containers), readBefore)
	if len(containers) > 0 {
		mark.Containers = containers
	}
	return mark, ok
}

func readBefore(raw string) (c Before, ok bool) {
	return c, json.Unmarshal([]byte(raw), &c) == nil && len(c.Since) <= mostImages
}

func isObject(raw string) bool { return strings.HasPrefix(raw, "{") }

// isTime reports whether the operator can have written this time.
func isTime(at time.Time) bool { return at.Unix() > 0 && at.UTC().Year() <= 9999 }

// count reports whether one more entry is within the bounds.
func (r *reader) count() bool {
	r.entries++
	return r.entries <= maxEntries
}
