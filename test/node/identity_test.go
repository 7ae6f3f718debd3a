package node

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Another tag of the same image restarts the container, and imageID stays equal.
func TestARetagRestartsWithAnEqualImageID(t *testing.T) {
	t.Parallel()
	image(t, "retag:v1", "SAME=retag")
	image(t, "retag:latest", "SAME=retag")
	before := startPod(t, `
metadata: {name: retag}
spec:
  initContainers: [{name: native, image: "REGISTRY/retag:v1", restartPolicy: Always}]
  containers: [{name: app, image: "REGISTRY/app:1"}]
`)
	setImages(t, before, images("retag:latest", "native"))
	after := awaitPod(t, before, "it runs anew", all(runsAnother(before, "native"), isReady))
	was, is := status(before, "native"), status(after, "native")
	if is.ImageID != was.ImageID {
		t.Errorf("imageID was %s and is %s; want it equal", was.ImageID, is.ImageID)
	}
}

// If any Pod pulls the same image by another name, status.image and status.imageID of running
// containers change. These containers are not restarted.
func TestAnAliasChangesTheStatusWithoutARestart(t *testing.T) {
	t.Parallel()
	image(t, "zz-alias:v1", "SAME=alias")
	image(t, "aa-alias:v1", "SAME=alias")
	image(t, "alias-other:v1", "VERSION=v1")
	image(t, "alias-other:v2", "VERSION=v2")
	before := startPod(t, `
metadata: {name: alias}
spec:
  initContainers: [{name: native, image: "REGISTRY/zz-alias:v1", restartPolicy: Always}]
  containers:
  - {name: app, image: "REGISTRY/app:1"}
  - {name: other, image: "REGISTRY/alias-other:v1"}
`)
	startPod(t, `
metadata: {name: alias-puller}
spec: {containers: [{name: app, image: "REGISTRY/aa-alias:v1"}]}
`)
	setImages(t, before, images("alias-other:v2", "other")) // has the kubelet look at the Pod again
	after := awaitPod(t, before, "another image", func(pod *corev1.Pod) error {
		was, is := status(before, "native"), status(pod, "native")
		if is.Image == was.Image || is.ImageID == was.ImageID {
			return fmt.Errorf("image is still %s, imageID %s", is.Image, is.ImageID)
		}
		return runsAnother(before, "other")(pod)
	})
	unchanged(t, before, after, "native")
	was, is := digest(status(before, "native").ImageID), digest(status(after, "native").ImageID)
	if was != is {
		t.Errorf("the digest was %s and is %s; want it equal", was, is)
	}
}

// digest is the part of an imageID that does not name a repository.
func digest(imageID string) string {
	_, digest, _ := strings.Cut(imageID, "@")
	return digest
}
