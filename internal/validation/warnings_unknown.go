package validation

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// mostUnknown is how many unknown members are named.
const mostUnknown = 10

// unknownMembers names members of containers and volumes that this build does not know. They
// are kept, because API servers may be newer than the build. No schema would report a
// misspelled name.
func (w *warner) unknownMembers(object map[string]any) {
	count := 0
	findUnknown(object, func(path *field.Path, name string, known map[string]reflect.Type) {
		if count++; count > mostUnknown {
			return
		}
		remedy := correction(name, known, "remove it if it is a mistake")
		if len(name) > mostCompared {
			name = name[:mostCompared] + "…"
		}
		w.add(path.Child(name), "is unknown to this operator, which injects it unchanged; %s", remedy)
	})
	if more := count - mostUnknown; more > 0 {
		w.add(field.NewPath("spec"), "%d more members of containers and volumes are not known to this operator and injected as they are; remove those that are a mistake", more)
	}
}

// correction says what to do about a name that is unknown: use the member that it is likely to
// mean, or else what the caller says.
func correction(name string, known map[string]reflect.Type, otherwise string) string {
	if meant := nearest(name, known); meant != "" {
		return "use " + meant + " if that is meant"
	}
	return otherwise
}

// nearest is the member that a name is likely to mean: one that differs in case
// or in few letters, the only one whose name begins or ends with it, or the only
// one of that name a level below; "" if there is none.
func nearest(name string, known map[string]reflect.Type) string {
	best, least := "", len(name)/3+1 // at most one mistake in three letters
	for _, candidate := range slices.Sorted(maps.Keys(known)) {
		if d := distance(strings.ToLower(name), strings.ToLower(candidate)); d < least {
			best, least = candidate, d
		}
	}
	if best != "" {
		return best
	}
	if longer := containing(name, known); longer != "" {
		return longer
	}
	for _, member := range slices.Sorted(maps.Keys(known)) {
		if _, ok := membersOf(known[member])[name]; ok && best != "" {
			return "" // the name may be meant for either of them
		} else if ok {
			best = member + "." + name
		}
	}
	return best
}

// shortest is how many letters of a longer name are enough to find the member that is meant.
const shortest = 5

// containing is the only member whose name begins or ends with a name; "" if
// there is none, or several.
func containing(name string, known map[string]reflect.Type) (found string) {
	name = strings.ToLower(name)
	for candidate := range known {
		lower := strings.ToLower(candidate)
		if len(name) < shortest || !strings.HasPrefix(lower, name) && !strings.HasSuffix(lower, name) {
			continue
		}
		if found != "" {
			return ""
		}
		found = candidate
	}
	return found
}

// mostCompared bounds the work for one name; members of Pods are shorter.
const mostCompared = 64

// distance is how many letters have to be added, removed, replaced or swapped
// with the next one to make one text of another.
func distance(a, b string) int {
	if len(a) > mostCompared || len(b) > mostCompared {
		return max(len(a), len(b))
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replaced := last[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replaced)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
