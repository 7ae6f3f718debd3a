package inplace

import (
	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// HotSidecar is a sidecar with a hot upgrade, as one SidecarSet wants it. A Pod has
// two containers of it: one works, the other has the empty image. An upgrade gives
// the idle container the new image, so that both run; a reset then gives the old
// one the empty image.
type HotSidecar struct {
	Name, Image, EmptyImage string
}

// HotStep is one write of a hot upgrade.
type HotStep struct {
	// Container gets Image.
	Container, Image string
	// Working is the container that works after the step, "" if that does not change.
	// It is recorded under the sidecar's name.
	Working string
	// Annotations are set on the Pod. The containers' environment reads them.
	Annotations map[string]string
}

// idleVersion is the version of a container that has the empty image. Programs in
// sidecars compare versions as integers.
const idleVersion = "0"

// Upgrade returns the step that makes the new image run beside the old one; false if the
// sidecar works with the new image already. version is the SidecarSet's resourceVersion, a
// number that grows from one upgrade to the next. working is the container that the Pod
// records as the working one. runs says whether a container is ready with the image that it
// was given last.
//
// If the other image does not run and the old one, which does, is wanted again, the
// step takes the upgrade back: the container that fails gets the empty image.
func (h HotSidecar) Upgrade(pod *corev1.Pod, working, version string, runs func(container string) bool) (HotStep, bool) {
	target := h.target(pod, working, runs)
	sibling := h.sibling(target)
	if imageOf(pod, sibling) == h.Image {
		given := imageOf(pod, target)
		if given == h.EmptyImage || given == h.Image || runs(target) || !runs(sibling) {
			return HotStep{}, false
		}
		step := h.idle(target)
		step.Working = sibling
		return step, true
	}
	return HotStep{
		Container: target, Image: h.Image, Working: target,
		Annotations: map[string]string{
			appsv1beta1.AnnotationVersionPrefix + target:     version,
			appsv1beta1.AnnotationVersionAltPrefix + target:  pod.Annotations[appsv1beta1.AnnotationVersionPrefix+sibling],
			appsv1beta1.AnnotationVersionAltPrefix + sibling: version,
		},
	}, true
}

// target is the container that gets the new image: the idle one. In the middle of an
// upgrade no container is idle. Then target is the container that fails, if the other one
// runs, and otherwise the one that is not recorded as working.
func (h HotSidecar) target(pod *corev1.Pod, working string, runs func(container string) bool) string {
	first, second := appsv1beta1.HotUpgradeNames(h.Name)
	switch {
	case imageOf(pod, first) == h.EmptyImage:
		return first
	case imageOf(pod, second) == h.EmptyImage:
		return second
	case runs(first) && !runs(second):
		return second
	case runs(second) && !runs(first):
		return first
	}
	return h.sibling(working)
}

// Upgrading reports whether an upgrade waits for its reset: the container that does not
// work has another image than the empty one, and the annotations say that an upgrade
// replaced it. If only hotUpgradeEmptyImage was changed, the annotations do not say so.
func (h HotSidecar) Upgrading(pod *corev1.Pod, working string) bool {
	other := h.sibling(working)
	work := h.sibling(other)
	alt, recorded := pod.Annotations[appsv1beta1.AnnotationVersionAltPrefix+work]
	return recorded && alt != idleVersion && imageOf(pod, other) != h.EmptyImage
}

// Reset returns the step that ends an upgrade; false if there is none to end, or if
// the working container does not run yet. The app's containers need not be ready.
func (h HotSidecar) Reset(pod *corev1.Pod, working string, runs func(container string) bool) (HotStep, bool) {
	other := h.sibling(working)
	if !h.Upgrading(pod, working) || !runs(h.sibling(other)) {
		return HotStep{}, false
	}
	return h.idle(other), true
}

// idle is the step that gives a container the empty image.
func (h HotSidecar) idle(container string) HotStep {
	return HotStep{
		Container: container, Image: h.EmptyImage,
		Annotations: map[string]string{
			appsv1beta1.AnnotationVersionPrefix + container:               idleVersion,
			appsv1beta1.AnnotationVersionAltPrefix + h.sibling(container): idleVersion,
		},
	}
}

// sibling is the other container of the pair: the first, if container names neither of the two.
func (h HotSidecar) sibling(container string) string {
	first, second := appsv1beta1.HotUpgradeNames(h.Name)
	if container == first {
		return second
	}
	return first
}

// imageOf is the image of a container or init container, "" if the Pod has none of
// that name.
func imageOf(pod *corev1.Pod, container string) string {
	if c, _ := containerOf(pod, container); c != nil {
		return c.Image
	}
	return ""
}
