package podstate

import (
	"encoding/json"
	"strings"
)

// Whoever creates a Pod writes its annotations: up to 3 MiB of them reach
// admission, and 256 KiB storage. A value beyond these bounds is garbage to
// every reader of this package, as is one that makes no sense. No operator
// writes such a value: 256 SidecarSets in one Pod need 64 KiB for their names
// alone if each has 253 characters, and half of that for usual hash entries.
const (
	maxValueBytes = 64 << 10
	maxEntries    = 256
)

// readable says whether a value is within the bounds and is a JSON object.
func readable(value string) bool {
	return len(value) <= maxValueBytes && json.Valid([]byte(value)) && value[skipSpace(value, 0)] == '{'
}

// parseTexts reads a JSON object of strings; null stands for the empty one.
func parseTexts(value string) (map[string]string, bool) {
	if value == "" || !readable(value) {
		return nil, false
	}
	texts, count := map[string]string{}, 0
	for name, raw := range members(value) {
		text, ok := parseString(raw)
		if count++; !ok || count > maxEntries {
			return nil, false
		}
		texts[name] = text
	}
	return texts, true
}

// tooManyNames says whether a list joined by commas has more names than are read.
func tooManyNames(list string) bool {
	return len(list) > maxValueBytes || countNames(list) > maxEntries
}

// countNames is how many names a list joined by commas has, empty ones included.
func countNames(list string) int { return strings.Count(list, ",") + 1 }
