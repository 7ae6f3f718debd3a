package podstate

import (
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

// tooManyNames reports whether a list joined by commas has more names than are read.
func tooManyNames(list string) bool {
	return len(list) > maxValueBytes || countNames(list) > maxEntries
}

// countNames is how many names a list joined by commas has, empty ones included.
func countNames(list string) int { return strings.Count(list, ",") + 1 }
