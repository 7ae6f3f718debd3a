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
		if forgotten(sidecarSet) {
			continue
		}
		if len(dst) > 1 {
			dst = append(dst, ',')
		}
		dst = append(append(jsonread.AppendText(dst, sidecarSet), ':'), state...)
	}
	return string(append(dst, '}'))
}
