package inject

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// ResetHotUpgrades decides about a Pod in which an old and a new container of a
// hot-upgrade sidecar run: once the new one runs, the old one gets the empty image.
// The Patch is nil as long as there is nothing to write. The Pod keeps the content
// that it records.
func ResetHotUpgrades(in UpdateInput) (Update, error) {
	u := newUpdate(in)
	u.resets = true
	if !u.record.Active || u.unreadable {
		return Update{}, nil
	}
	u.eachHot(func(h inplace.HotSidecar, working string) (inplace.HotStep, bool) {
		return h.Reset(u.Pod, working, u.runs)
	})
	if len(u.hot) == 0 {
		return Update{}, nil
	}
	u.findChanges()
	return u.write(inplace.Verdict{Way: inplace.Images})
}

// hotStep is a step of one sidecar's hot upgrade.
type hotStep struct {
	sidecar string
	inplace.HotStep
}

// upgradeHot finds the hot-upgrade sidecars that get another image.
func (u *update) upgradeHot() {
	u.eachHot(func(h inplace.HotSidecar, working string) (inplace.HotStep, bool) {
		if u.before(h.Name) == h.Image {
			return inplace.HotStep{}, false
		}
		return h.Upgrade(u.Pod, working, u.Program.Set.ResourceVersion, u.runs)
	})
}

// eachHot notes the steps that the hot-upgrade sidecars of the Pod take.
func (u *update) eachHot(step func(h inplace.HotSidecar, working string) (inplace.HotStep, bool)) {
	working := podstate.ParseTexts(u.Pod.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer])
	for _, sidecars := range [][]appsv1beta1.SidecarContainer{u.Program.Set.Spec.InitContainers, u.Program.Set.Spec.Containers} {
		for i := range sidecars {
			c := &sidecars[i]
			if !c.IsHotUpgrade() || !u.hasPair(c.Name) {
				continue
			}
			h := inplace.HotSidecar{Name: c.Name, Image: c.Image, EmptyImage: c.UpgradeStrategy.HotUpgradeEmptyImage}
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
		if inplace.Find(containers, first) != nil && inplace.Find(containers, second) != nil {
			return true
		}
	}
	return false
}

// runs reports whether a container is ready with the image that it was given last.
func (u *update) runs(container string) bool {
	if u.previous != nil {
		return u.previous.Runs(u.Pod, container, u.Now)
	}
	return inplace.IsReady(u.Pod, container) && u.record.Landed(podstate.MakeName(u.set), podstate.MakeName(container))
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
			u.out.annotate(key, value)
		}
	}
	u.out.annotate(appsv1beta1.AnnotationWorkingHotUpgradeContainer, podstate.FormatTexts(working))
}
