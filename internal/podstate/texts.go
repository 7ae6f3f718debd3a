package podstate

import (
	"encoding/json"

	"github.com/sidecarset/operator/internal/jsonread"
)

// ChoseCurrent is the choice of the current content over a recorded revision.
// No ControllerRevision can have that name.
const ChoseCurrent = "Current"

// ParseTexts reads an annotation that maps names to texts. It returns nil if the value is absent
// or unreadable. A null counts as the empty string. Two annotations have this form: the random
// choices between revisions (by SidecarSet, the name of the ControllerRevision that the Pod was
// given, or ChoseCurrent), and the containers that do the work of hot-upgrade sidecars.
func ParseTexts(value string) map[string]string {
	if value == "" || !readable(value) {
		return nil
	}
	texts, count := map[string]string{}, 0
	for name, raw := range jsonread.Members(value) {
		text, ok := parseString(raw)
		if count++; !ok || count > maxEntries {
			return nil
		}
		texts[name] = text
	}
	return texts
}

// FormatTexts renders what ParseTexts reads, names sorted.
func FormatTexts(texts map[string]string) string {
	text, _ := json.Marshal(texts) // a map of strings always marshals
	return string(text)
}
