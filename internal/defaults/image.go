package defaults

import (
	"regexp"
	"strings"
)

// pullPolicy is Always for images whose tag is, or resolves to, latest. It is IfNotPresent
// for all others: pinned by another tag or a digest, or not an image reference at all. The
// reference does the same for the last, and validation or the kubelet reports what is
// wrong.
func pullPolicy(image string) string {
	tag, digest, ok := parseImage(image)
	if ok && (tag == "latest" || (tag == "" && digest == "")) {
		return "Always"
	}
	return "IfNotPresent"
}

// The grammar of image references, as container registries define it.
var (
	reference = regexp.MustCompile(`^(?:` + domain + `/)?(` + component + `(?:/` + component + `)*)` +
		`(?::([\w][\w.-]{0,127}))?(?:@(` + digest + `))?$`)
	digests = map[string]*regexp.Regexp{
		"sha256": regexp.MustCompile(`^[a-f0-9]{64}$`),
		"sha384": regexp.MustCompile(`^[a-f0-9]{96}$`),
		"sha512": regexp.MustCompile(`^[a-f0-9]{128}$`),
	}
)

const (
	label     = `(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])`
	domain    = `(?:` + label + `(?:\.` + label + `)*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?`
	component = `[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*`
	digest    = `[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}`

	maxPath = 255 // characters of an image's name without its registry
)

// parseImage splits an image reference. It fails where a container runtime
// would not know which image is meant.
func parseImage(image string) (tag, digest string, ok bool) {
	if digests["sha256"].MatchString(image) {
		return "", "", false // an image ID, not a name
	}
	registry, rest := splitRegistry(image)
	if name, _, _ := strings.Cut(rest, ":"); name != strings.ToLower(name) {
		return "", "", false
	}
	parts := reference.FindStringSubmatch(registry + "/" + rest)
	if parts == nil || len(parts[1]) > maxPath {
		return "", "", false
	}
	return parts[2], parts[3], isDigest(parts[3])
}

// splitRegistry takes what is before the first slash as a registry if it
// cannot be a part of a name: a dot, a port, an upper-case letter, localhost.
func splitRegistry(image string) (registry, rest string) {
	first, rest, found := strings.Cut(image, "/")
	isRegistry := found && (first == "localhost" || strings.ContainsAny(first, ".:") || first != strings.ToLower(first))
	if isRegistry && first != "index.docker.io" && first != "docker.io" {
		return first, rest
	}
	if !isRegistry {
		rest = image
	}
	if !strings.Contains(rest, "/") {
		rest = "library/" + rest
	}
	return "docker.io", rest
}

func isDigest(s string) bool {
	if s == "" {
		return true
	}
	algorithm, sum, _ := strings.Cut(s, ":")
	format := digests[algorithm]
	return format != nil && format.MatchString(sum)
}
