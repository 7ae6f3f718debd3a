package validation

import (
	"encoding/json"
	"fmt"
)

// maxSpecBytes bounds the spec of a SidecarSet as JSON, since every replica of
// the operator holds it, and up to ten more that are recorded of it. The API
// server stores 1.5 MiB.
const maxSpecBytes = 256 << 10

// validateSize refuses a spec that is too long. One that is stored already may
// stay as long as it is: it was stored before there was this rule, or without our
// webhook, and its other members have to be editable.
func validateSize(object, replaced map[string]any, spec place) {
	if size := sizeOf(object); size > maxSpecBytes && size > sizeOf(replaced) {
		spec.forbidden(fmt.Sprintf("has %d bytes as JSON, and may have %d, since every replica of the operator keeps it in memory; move long values into ConfigMaps, or split the SidecarSet", size, maxSpecBytes))
	}
}

// sizeOf is the length of a spec as JSON, 0 if there is none.
func sizeOf(object map[string]any) int {
	text, _ := json.Marshal(specOf(object)) // a tree of JSON values always marshals
	return len(text)
}
