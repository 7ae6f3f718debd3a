package defaults

import "github.com/distribution/reference"

// pullPolicy is Always for images whose tag is, or resolves to, latest. It is IfNotPresent
// for all others: pinned by another tag or a digest, or not an image reference at all. The
// reference does the same for the last, and validation or the kubelet reports what is
// wrong. Names are read by the library that Kubernetes uses.
func pullPolicy(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "IfNotPresent"
	}
	tagged, hasTag := named.(reference.Tagged)
	_, hasDigest := named.(reference.Digested)
	if hasTag && tagged.Tag() == "latest" || !hasTag && !hasDigest {
		return "Always"
	}
	return "IfNotPresent"
}
