package inplace

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/internal/jsonread"
)

// reader reads one annotation, all of it or nothing.
type reader struct {
	uid     types.UID
	marks   Marks
	entries int
}

func (r *reader) read(value string) bool {
	if len(value) > maxValueBytes || !jsonread.IsObject(value) {
		return false
	}
	var uid, sets, resizes string
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
	if !current || !isObject(sets) || resizes != "" && !isObject(resizes) {
		return false
	}
	if uid != string(r.uid) {
		return true // the record of another Pod
	}
	for set, raw := range jsonread.Members(sets) {
		mark, ok := r.mark(raw)
		if !ok || !r.count() {
			return false
		}
		r.marks.entries = append(r.marks.entries, entry{set, mark})
	}
	byName := func(a, b entry) int { return strings.Compare(a.set, b.set) }
	slices.SortFunc(r.marks.entries, byName)
	return !hasTwins(r.marks.entries, byName) && r.readResizes(resizes)
}

func (r *reader) readResizes(resizes string) bool {
	if resizes == "" {
		return true
	}
	r.marks.sizes = map[string]Sizes{}
	for set, raw := range jsonread.Members(resizes) {
		s, ok := r.sizes(raw)
		if _, twin := r.marks.sizes[set]; !ok || twin || !r.count() {
			return false
		}
		r.marks.sizes[set] = s
	}
	return true
}

func (r *reader) mark(raw string) (mark Mark, ok bool) {
	if !isObject(raw) {
		return mark, false
	}
	ok = true
	for name, raw := range jsonread.Members(raw) {
		var err error
		switch name {
		case "generation":
			mark.Generation, err = strconv.ParseInt(raw, 10, 64)
		case "at":
			mark.At, err = time.Parse(`"`+time.RFC3339+`"`, raw)
			mark.At = mark.At.UTC()
		case "wasReady":
			mark.WasReady = raw == "true"
			ok = ok && (mark.WasReady || raw == "false")
		case "containers":
			var read bool
			mark.Containers, read = r.containers(raw)
			ok = ok && read
		}
		ok = ok && err == nil
	}
	return mark, ok && mark.Generation >= 0 && mark.At.Unix() > 0 && mark.At.Year() <= 9999
}

func (r *reader) containers(raw string) ([]Before, bool) {
	if !isObject(raw) {
		return nil, false
	}
	var all []Before
	for name, raw := range jsonread.Members(raw) {
		if !isObject(raw) || !r.count() {
			return nil, false
		}
		c := Before{Name: name}
		for member, raw := range jsonread.Members(raw) {
			text := &c.ID
			switch member {
			case "id":
			case "since":
				if json.Unmarshal([]byte(raw), &c.Since) != nil || len(c.Since) > mostImages {
					return nil, false
				}
				continue
			case "image":
				text = &c.Image
			case "digest":
				text = &c.Digest
			default:
				continue
			}
			if raw[0] != '"' {
				return nil, false
			}
			*text = jsonread.Unquote(raw)
		}
		all = append(all, c)
	}
	slices.SortFunc(all, byContainer)
	return all, !hasTwins(all, byContainer)
}

// count reports whether one more entry is within the bounds.
func (r *reader) count() bool {
	r.entries++
	return r.entries <= maxEntries
}

func byContainer(a, b Before) int { return strings.Compare(a.Name, b.Name) }

func isObject(raw string) bool { return raw != "" && raw[0] == '{' }

// hasTwins reports whether two neighbours are equal.
func hasTwins[T any](sorted []T, compare func(a, b T) int) bool {
	for i := 1; i < len(sorted); i++ {
		if compare(sorted[i-1], sorted[i]) == 0 {
			return true
		}
	}
	return false
}
