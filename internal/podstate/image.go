package podstate

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Image names come from three places that write them differently: users
// ("busybox:1.36"), the kubelet's status.image ("docker.io/library/busybox:1.36")
// and its status.imageID ("docker-pullable://busybox@sha256:…", a mirror's name
// before the digest, or a bare "sha256:…").

// imageDigest returns the digest that an image name or ID has after '@', ""
// if it has none. A bare image ID has none: it names a local configuration, not
// what a registry serves.
func imageDigest(image string) string {
	_, digest, _ := strings.Cut(image, "@")
	return digest
}

// sameImage reports whether two image names mean the same thing once the defaults
// that a runtime adds are filled in: registry, "library/" and tag.
func sameImage(a, b string) bool {
	return a == b || max(len(a), len(b)) <= maxImageName && fullImageName(a) == fullImageName(b)
}

// maxImageName is longer than any name of an image with registry, tag and digest.
const maxImageName = 1024

// fullImageName fills in what may be left out of an image name. With a digest
// the tag is dropped, since the digest alone decides.
func fullImageName(image string) string {
	if _, name, ok := strings.Cut(image, "://"); ok {
		image = name
	}
	name, digest, pinned := strings.Cut(image, "@")
	registry, path, ok := strings.Cut(name, "/")
	if !ok || (!strings.ContainsAny(registry, ".:") && registry != "localhost") {
		registry, path = "docker.io", name
	}
	if registry == "index.docker.io" {
		registry = "docker.io"
	}
	if registry == "docker.io" && !strings.Contains(path, "/") {
		path = "library/" + path
	}
	repository, tag, tagged := strings.Cut(path, ":")
	switch {
	case pinned:
		return registry + "/" + repository + "@" + digest
	case !tagged:
		tag = "latest"
	}
	return registry + "/" + repository + ":" + tag
}

// digestOf returns the part of an image ID that identifies the image on any node: the
// digest behind '@', or the ID of an image that no registry served.
func digestOf(imageID string) string {
	if _, digest, ok := strings.Cut(imageID, "@"); ok {
		return digest
	}
	if _, id, ok := strings.Cut(imageID, "://"); ok {
		return id
	}
	return imageID
}

// showsDigest reports whether a status has the digest that an image name has. The name before
// a digest is that of the mirror it came from, or a short form.
func showsDigest(image string, status *corev1.ContainerStatus) bool {
	want := imageDigest(image)
	return want != "" && (imageDigest(status.ImageID) == want || imageDigest(status.Image) == want)
}
