package podstate

import (
	"encoding/json"
	"strings"

	"github.com/sidecarset/operator/internal/jsonread"
)

// The author of a Pod writes its annotations: up to 3 MiB of them reach admission, and 256 KiB
// reach storage. This package treats a value beyond these bounds as unreadable. No operator
// writes such a value: 256 SidecarSets in one Pod need 64 KiB for their names alone if each
// has 253 characters, and half of that for usual hash records.
const (
	maxValueBytes = 64 << 10
	maxEntries    = 256
)

// readable reports whether a value is within the bounds and is a JSON object.
func readable(value string) bool {
	return len(value) <= maxValueBytes && jsonread.IsObject(value)
}

// parseTexts reads a JSON object of strings. A null counts as the empty string.
func parseTexts(value string) (map[string]string, bool) {
	if value == "" || !readable(value) {
		return nil, false
	}
	texts, count := map[string]string{}, 0
	for name, raw := range jsonread.Members(value) {
		text, ok := parseString(raw)
		if count++; !ok || count > maxEntries {
			return nil, false
		}
		texts[name] = text
	}
	return texts, true
}

// FormatTexts renders what ParseRevisionChoices and ParseWorking read, names sorted.
func FormatTexts(texts map[string]string) string {
	text, _ := json.Marshal(texts) // a map of strings always marshals
	return string(text)
}

// tooManyNames reports whether a list joined by commas has more names than are read.
func tooManyNames(list string) bool {
	return len(list) > maxValueBytes || countNames(list) > maxEntries
}

// countNames is how many names a list joined by commas has, empty ones included.
func countNames(list string) int { return strings.Count(list, ",") + 1 }
