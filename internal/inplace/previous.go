package inplace

import (
	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/podstate"
)

// Previous returns the revision of a SidecarSet that a Pod records. It returns nil if the Pod
// records no revision, read returns nil because the revision is deleted, unreadable or of
// another SidecarSet, or its hash differs from the Pod's recorded hash. OpenKruise records the
// previous revision in Pods that it injects right after a change.
func Previous(sidecarSet string, pod *corev1.Pod, read func(revision string) (*inject.Compiled, error)) (*inject.Compiled, error) {
	hashes := podstate.ParseHashes(pod.Annotations[appsv1beta1.AnnotationHash])
	name := hashes.Revision(sidecarSet)
	if name == "" {
		return nil, nil
	}
	compiled, err := read(name)
	if err != nil || compiled == nil || compiled.Hash != hashes.Hash(sidecarSet) {
		return nil, err
	}
	return compiled, nil
}
