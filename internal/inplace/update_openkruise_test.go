package inplace_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
)

// conclusion is what OpenKruise's controller concludes about a Pod that has a
// SidecarSet.
type conclusion struct {
	// Updated and Ready Pods are counted as such in the status.
	Updated, Ready bool
	// NotUpgradable Pods cannot follow in its view.
	NotUpgradable bool
	// Takes: it may update the Pod now. Then the containers in Gets get another image.
	Takes bool
	Gets  []string
	// Resets: it ends the hot upgrade of the Pod now.
	Resets bool
}

// openKruise is the predicate of OpenKruise 1.9, on its own: it shares no code with the
// operator, and reads nothing under sidecarset.io/.
type openKruise struct {
	pod      *corev1.Pod
	compiled *inject.Compiled
}

func (k openKruise) concludes() conclusion {
	c := conclusion{
		Updated: k.hash(appsv1beta1.AnnotationHash) == k.compiled.Hash,
		Ready:   k.consistent(k.sidecars()) && k.ready(),
		Resets:  k.resets(),
	}
	c.NotUpgradable = !c.Updated && k.hash(appsv1beta1.AnnotationHashWithoutImage) != k.compiled.HashWithoutImage
	if c.Takes = !c.Updated && !c.NotUpgradable && k.settled(); !c.Takes {
		return c
	}
	for _, sidecar := range k.compiled.Set.Spec.Containers {
		if i := slices.IndexFunc(k.pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == sidecar.Name }); i >= 0 && k.pod.Spec.Containers[i].Image != sidecar.Image {
			c.Gets = append(c.Gets, sidecar.Name)
		}
	}
	return c
}

func (k openKruise) hash(annotation string) string {
	var recorded map[string]struct{ Hash string }
	_ = json.Unmarshal([]byte(k.pod.Annotations[annotation]), &recorded) // what cannot be read is empty
	return recorded[k.compiled.Name()].Hash
}

// sidecars are the containers that it looks at: no init containers.
func (k openKruise) sidecars() (names []string) {
	for i := range k.compiled.Set.Spec.Containers {
		names = append(names, k.compiled.Set.Spec.Containers[i].PodContainerNames()...)
	}
	return names
}

func (k openKruise) status(name string) *corev1.ContainerStatus { return statusOf(k.pod, name) }

// consistent: the kubelet runs what the containers were given.
func (k openKruise) consistent(names []string) bool {
	if len(k.pod.Spec.Containers) != len(k.pod.Status.ContainerStatuses) {
		return false
	}
	for _, c := range k.pod.Spec.Containers {
		if !slices.Contains(names, c.Name) {
			continue
		}
		if !strings.Contains(c.Image, "@") {
			return k.recordedChange(names)
		}
		s := k.status(c.Name)
		if s == nil {
			return false
		}
		id := s.ImageID
		if _, after, ok := strings.Cut(id, "://"); ok {
			id = after
		}
		if id != c.Image {
			return false
		}
	}
	return true
}

// recordedChange: each container has another imageID than before its update, or its
// status has the image of its spec, letter for letter.
func (k openKruise) recordedChange(names []string) bool {
	annotation, there := k.pod.Annotations[appsv1beta1.AnnotationInPlaceUpdateState]
	if !there {
		return true
	}
	var recorded map[string]struct {
		LastContainerStatuses map[string]struct{ ImageID string }
	}
	if json.Unmarshal([]byte(annotation), &recorded) != nil {
		return false
	}
	last := recorded[k.compiled.Name()].LastContainerStatuses
	for _, c := range k.pod.Spec.Containers {
		s := k.status(c.Name)
		if before := last[c.Name].ImageID; slices.Contains(names, c.Name) && before != "" && s != nil && s.ImageID == before && s.Image != c.Image {
			return false
		}
	}
	return true
}

// settled: no container that is ready waits for the kubelet to act on an image.
func (k openKruise) settled() bool {
	return !slices.ContainsFunc(k.sidecars(), func(name string) bool {
		s := k.status(name)
		return s != nil && s.Ready && !k.consistent([]string{name})
	})
}

func (k openKruise) ready() bool {
	return len(k.given()) == 0 && k.isReady()
}

func (k openKruise) isReady() bool {
	return k.pod.DeletionTimestamp == nil && k.pod.Status.Phase == corev1.PodRunning && slices.ContainsFunc(k.pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// others are the containers of hot-upgrade sidecars that do not work.
func (k openKruise) others() (names []string) {
	var working map[string]string
	_ = json.Unmarshal([]byte(k.pod.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer]), &working)
	for i := range k.compiled.Set.Spec.Containers {
		if c := &k.compiled.Set.Spec.Containers[i]; c.IsHotUpgrade() {
			other := c.Name + "-1"
			if working[c.Name] == other {
				other = c.Name + "-2"
			}
			names = append(names, other)
		}
	}
	return names
}

// given are those of the others that have another image than the empty one.
func (k openKruise) given() (names []string) {
	for _, other := range k.others() {
		for _, c := range k.pod.Spec.Containers {
			if c.Name == other && c.Image != "empty:1" {
				names = append(names, other)
			}
		}
	}
	return names
}

func (k openKruise) resets() bool {
	others := k.others()
	isOther := func(name string) bool { return slices.Contains(others, name) }
	return len(k.given()) > 0 && k.consistent(slices.DeleteFunc(k.sidecars(), isOther)) &&
		(k.isReady() || !slices.ContainsFunc(k.pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return !isOther(s.Name) && !s.Ready }))
}

// handover is a Pod that the operator is updating. At any moment, OpenKruise may take
// over from it.
type handover struct {
	t   *testing.T
	pod *corev1.Pod
	in  inplace.UpdateInput
	// olds are recorded revisions, if they are compared.
	olds []*fixtures.SidecarSetBuilder
}

// wants compares what OpenKruise concludes with what it should conclude.
func (h *handover) wants(when string, set *fixtures.SidecarSetBuilder, want conclusion) {
	h.t.Helper()
	pod := h.pod.DeepCopy()
	delete(pod.Annotations, appsv1beta1.AnnotationInPlace)
	if diff := cmp.Diff(want, openKruise{pod, fixtures.Compiled(h.t, set.Map())}.concludes()); diff != "" {
		h.t.Errorf("%s, OpenKruise's conclusion (-want +got):\n%s", when, diff)
	}
}

// follow brings the Pod one write nearer to a revision.
func (h *handover) follow(set *fixtures.SidecarSetBuilder, way inplace.Method) {
	h.t.Helper()
	h.in = inplace.UpdateInput{Pod: h.pod, Compiled: fixtures.Compiled(h.t, set.Map()), Revision: revisionOf(h.t, set, h.olds...), Now: updatedAt}
	u, err := update(h.in)
	if err != nil || u.Verdict.Method != way || u.Patch == nil && u.Record == nil {
		h.t.Fatalf("UpdateInPlace = %+v, %v; want a write for the way %d", u, err, way)
	}
	h.write(u)
}

func (h *handover) write(u inplace.Update) {
	h.t.Helper()
	if u.Record != nil {
		h.pod = patched(h.t, h.pod, u.Record)
		return
	}
	h.pod = patched(h.t, h.pod, u.Patch)
	h.pod.Generation++
}

func logSet(version string) *fixtures.SidecarSetBuilder {
	return fixtures.SidecarSet("mesh").Container("log", "log:"+version)
}

// A rollout is under way, and OpenKruise takes over: no Pod counts as ready before the
// kubelet is done, and none is updated a second time.
func TestOpenKruiseTakesOverInTheMiddleOfAnUpdate(t *testing.T) {
	h := &handover{t: t, pod: running(t, logSet("1"))}
	h.wants("before", logSet("2"), conclusion{Ready: true, Takes: true, Gets: []string{"log"}})
	h.follow(logSet("2"), inplace.Images)
	h.wants("written", logSet("2"), conclusion{Updated: true})
	h.wants("written, and outdated again", logSet("3"), conclusion{})

	written := h.pod.DeepCopy()
	kubeletReports(h.pod, "log", "ImagePullBackOff", updatedAt.Add(time.Second))
	h.wants("the image cannot be pulled", logSet("2"), conclusion{Updated: true})
	h.wants("the image cannot be pulled, and is replaced", logSet("3"), conclusion{Takes: true, Gets: []string{"log"}})

	h.pod = written
	kubeletReports(h.pod, "log", "", updatedAt.Add(time.Second))
	statusOf(h.pod, "log").Ready, h.pod.Status.Conditions[0].Status = false, corev1.ConditionFalse
	h.wants("it runs and is not ready", logSet("2"), conclusion{Updated: true})
	kubeletReports(h.pod, "log", "", updatedAt.Add(time.Second))
	h.wants("it is ready", logSet("2"), conclusion{Updated: true, Ready: true})
	h.wants("it is ready, and outdated again", logSet("3"), conclusion{Ready: true, Takes: true, Gets: []string{"log"}})
}

// Both hashes travel with the images, after the resize: until then OpenKruise leaves the
// Pod as it is.
func TestOpenKruiseTakesOverInTheMiddleOfAResize(t *testing.T) {
	for name, version := range map[string]string{"with an image": "2", "alone": "1"} {
		t.Run(name, func(t *testing.T) {
			old, now := sizedSet("1", "100m"), sizedSet(version, "200m")
			h := &handover{t: t, pod: running(t, old), olds: []*fixtures.SidecarSetBuilder{old}}
			h.wants("before", now, conclusion{Ready: true, NotUpgradable: true})
			h.follow(now, inplace.Resize)
			h.wants("on record", now, conclusion{Ready: true, NotUpgradable: true})
			h.follow(now, inplace.Resize)
			h.wants("written", now, conclusion{Ready: true, NotUpgradable: true})
			h.wants("written, and taken back", old, conclusion{Updated: true, Ready: true})
			h.pod.Status.ObservedGeneration = h.pod.Generation
			statusOf(h.pod, "log").Resources = containerNamed(h.pod, "log").Resources.DeepCopy()
			h.wants("resized", now, conclusion{Ready: true, NotUpgradable: true})
			h.follow(now, inplace.Images)
			h.wants("the images are written", now, conclusion{Updated: true, Ready: version == "1"})
			if version != "1" {
				kubeletReports(h.pod, "log", "", updatedAt.Add(time.Second))
				h.wants("the kubelet is done", now, conclusion{Updated: true, Ready: true})
			}
			h.wants("outdated by another image", sizedSet("3", "200m"), conclusion{Ready: true, Takes: true, Gets: []string{"log"}})
		})
	}
}

// OpenKruise looks at no init container. So it counts a Pod as updated while its native
// sidecar is being replaced. If the operator has not reached a Pod, OpenKruise writes only
// the hash. Such rollouts have to end before it takes over.
func TestOpenKruiseTakesOverWithNativeSidecars(t *testing.T) {
	set := func(log, proxy string) *fixtures.SidecarSetBuilder {
		return fixtures.SidecarSet("mesh").Container("log", "log:"+log).Native("proxy", "proxy:"+proxy)
	}
	h := &handover{t: t, pod: running(t, set("1", "1"))}
	h.wants("not reached", set("1", "2"), conclusion{Ready: true, Takes: true})
	h.follow(set("1", "2"), inplace.Images)
	h.wants("written", set("1", "2"), conclusion{Updated: true, Ready: true})
	if w := written(h.pod); w.Carried != 0 {
		t.Errorf("by the operator's own record, it is carried out: %+v", w)
	}
	h.pod.Status.Conditions[0].Status = corev1.ConditionFalse // the kubelet replaces it
	h.wants("being replaced", set("1", "2"), conclusion{Updated: true})

	// If another sidecar is updated too, OpenKruise looks at that one alone.
	h.pod = running(t, set("1", "1"))
	h.follow(set("2", "2"), inplace.Images)
	h.wants("both are written", set("2", "2"), conclusion{Updated: true})
	kubeletReports(h.pod, "log", "", updatedAt.Add(time.Second))
	h.wants("the native sidecar is left", set("2", "2"), conclusion{Updated: true, Ready: true})
}

func TestOpenKruiseTakesOverInTheMiddleOfAHotUpgrade(t *testing.T) {
	h := &handover{t: t, pod: running(t, hotSidecar("mesh:v1"))}
	v2 := hotSidecar("mesh:v2")
	h.wants("before", hotSidecar("mesh:v1"), conclusion{Updated: true, Ready: true})
	h.follow(v2, inplace.Images)
	h.wants("upgraded", v2, conclusion{Updated: true})
	kubeletReports(h.pod, "mesh-2", "CrashLoopBackOff", updatedAt.Add(time.Second))
	h.wants("the new container fails", v2, conclusion{Updated: true})
	kubeletReports(h.pod, "mesh-2", "", updatedAt.Add(time.Second))
	h.wants("both run", v2, conclusion{Updated: true, Resets: true})
	h.in.Pod, h.in.Now = h.pod, updatedAt.Add(time.Hour)
	u, err := reset(h.in)
	if err != nil || u.Patch == nil {
		t.Fatalf("ResetHotUpgrades = %+v, %v", u, err)
	}
	h.write(u)
	h.wants("reset", v2, conclusion{Updated: true})
	kubeletReports(h.pod, "mesh-1", "", updatedAt.Add(time.Hour))
	h.wants("the old container is given up", v2, conclusion{Updated: true, Ready: true})
}
