package podstate

import "github.com/sidecarset/operator/internal/jsonread"

// ForgetUpdates returns the annotation of in-place updates without what it says
// about the SidecarSets that forgotten names. Nothing is left of a value that
// cannot be read.
func ForgetUpdates(value string, forgotten func(sidecarSet string) bool) string {
	if _, ok := parseImageIDs(value); !ok || value == "null" {
		return "{}"
	}
	dst := []byte{'{'}
	for sidecarSet, state := range jsonread.Members(value) {
		if !forgotten(sidecarSet) {
			dst = appendMember(dst, sidecarSet, state)
		}
	}
	return string(append(dst, '}'))
}
