package inplace

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
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

// Upgrade returns the step that makes the new image run next to the old one; false if the
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
		if h.idles(pod, target) || imageOf(pod, target) == h.Image || runs(target) || !runs(sibling) {
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
	case h.idles(pod, first):
		return first
	case h.idles(pod, second):
		return second
	case runs(first) && !runs(second):
		return second
	case runs(second) && !runs(first):
		return first
	}
	return h.sibling(working)
}

// idles reports whether a container has the empty image, or by the annotations was given it. A
// webhook may have rewritten the image.
func (h HotSidecar) idles(pod *corev1.Pod, container string) bool {
	return imageOf(pod, container) == h.EmptyImage ||
		pod.Annotations[appsv1beta1.AnnotationVersionPrefix+container] == idleVersion &&
			pod.Annotations[appsv1beta1.AnnotationVersionAltPrefix+h.sibling(container)] == idleVersion
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
	if c, _ := podstate.ContainerOf(pod, container); c != nil {
		return c.Image
	}
	return ""
}

// ResetHotUpgrades decides about a Pod in which an old and a new container of a
// hot-upgrade sidecar run: once the new one runs, the old one gets the empty image.
// The Patch is nil as long as there is nothing to write. The Pod keeps the revision
// that it records.
func ResetHotUpgrades(in UpdateInput) (Update, error) {
	u := newUpdate(in)
	u.resets, u.before.Hash = true, u.hashes.Hash(u.set)
	if u.before.Previous != nil {
		u.before.StateBefore = u.before.Previous.StateBefore
	}
	if !u.pod.Active || u.pod.RecordUnreadable {
		return Update{}, nil
	}
	u.eachHot(func(h HotSidecar, working string) (HotStep, bool) {
		return h.Reset(u.Pod, working, u.runs)
	})
	if len(u.hot) == 0 {
		return Update{}, nil
	}
	u.findChanges()
	return u.write(Verdict{Method: Images})
}

// hotStep is a step of one sidecar's hot upgrade.
type hotStep struct {
	sidecar string
	HotStep
}

// upgradeHot finds the hot-upgrade sidecars that get another image.
func (u *update) upgradeHot() {
	u.eachHot(func(h HotSidecar, working string) (HotStep, bool) {
		if u.imageBefore(h.Name) == h.Image {
			return HotStep{}, false
		}
		return h.Upgrade(u.Pod, working, u.Compiled.Set.ResourceVersion, u.runs)
	})
}

// eachHot notes the steps that the hot-upgrade sidecars of the Pod take.
func (u *update) eachHot(step func(h HotSidecar, working string) (HotStep, bool)) {
	working := podstate.ParseTexts(u.Pod.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer])
	for _, sidecars := range [][]appsv1beta1.SidecarContainer{u.Compiled.Set.Spec.InitContainers, u.Compiled.Set.Spec.Containers} {
		for i := range sidecars {
			c := &sidecars[i]
			if !c.IsHotUpgrade() || !u.hasPair(c.Name) {
				continue
			}
			h := HotSidecar{Name: c.Name, Image: c.Image, EmptyImage: c.UpgradeStrategy.HotUpgradeEmptyImage}
			if s, ok := step(h, working[c.Name]); ok {
				u.hot = append(u.hot, hotStep{c.Name, s})
			}
		}
	}
}

// hasPair reports whether the Pod has both containers of a sidecar. A plain init
// container is one container, whatever its upgrade strategy says.
func (u *update) hasPair(sidecar string) bool {
	first, second := appsv1beta1.HotUpgradeNames(sidecar)
	for _, containers := range [][]corev1.Container{u.Pod.Spec.InitContainers, u.Pod.Spec.Containers} {
		if podstate.Find(containers, first) != nil && podstate.Find(containers, second) != nil {
			return true
		}
	}
	return false
}

// runs reports whether a container is ready with the image that it was given last.
func (u *update) runs(container string) bool {
	if u.before.Previous != nil {
		return u.before.Previous.Runs(u.Pod, container, u.Now)
	}
	return podstate.IsContainerReady(u.Pod, container)
}

// writeHot adds what the containers of hot-upgrade sidecars read from annotations.
func (u *update) writeHot() {
	if len(u.hot) == 0 {
		return
	}
	working := map[string]string{}
	maps.Copy(working, podstate.ParseTexts(u.Pod.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer]))
	for _, step := range u.hot {
		if step.Working != "" {
			working[step.sidecar] = step.Working
		}
		for key, value := range step.Annotations {
			u.out.Set(key, value)
		}
	}
	u.out.Set(appsv1beta1.AnnotationWorkingHotUpgradeContainer, podstate.FormatTexts(working))
}
