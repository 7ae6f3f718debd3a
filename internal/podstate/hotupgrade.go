package podstate

// ParseWorking reads the annotation that maps each hot-upgrade sidecar to the
// one of its two containers that does the work. It returns an empty map, never
// nil, for a value that cannot be read.
func ParseWorking(value string) map[string]string {
	if working, ok := parseTexts(value); ok {
		return working
	}
	return map[string]string{}
}
