package inplace_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/fixtures/cluster"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// hotState is what a hot upgrade is made of: images and versions of the pair.
type hotState struct{ First, Second, Working, Versions string }

func hotStateOf(pod *corev1.Pod) (s hotState) {
	for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
		switch c.Name {
		case "mesh-1":
			s.First = c.Image
		case "mesh-2":
			s.Second = c.Image
		}
	}
	s.Working = pod.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer]
	var versions []string
	for _, prefix := range []string{appsv1beta1.AnnotationVersionPrefix, appsv1beta1.AnnotationVersionAltPrefix} {
		versions = append(versions, pod.Annotations[prefix+"mesh-1"]+"/"+pod.Annotations[prefix+"mesh-2"])
	}
	s.Versions = strings.Join(versions, " ")
	return s
}

var hot = map[string]any{"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:1"}

func hotSidecar(image string) *fixtures.SidecarSetBuilder {
	return fixtures.SidecarSet("mesh").Container("mesh", image).With("upgradeStrategy", hot)
}

func hotNative(image string) *fixtures.SidecarSetBuilder {
	return fixtures.SidecarSet("mesh").Native("mesh", image).With("upgradeStrategy", hot)
}

// The table is that of OpenKruise: injected, upgraded, reset.
func TestAHotUpgradeIsTwoWrites(t *testing.T) {
	for name, set := range map[string]func(image string) *fixtures.SidecarSetBuilder{"containers": hotSidecar, "native sidecars": hotNative} {
		t.Run(name, func(t *testing.T) {
			pod := running(t, set("mesh:v1"))
			want := hotState{"mesh:v1", "empty:1", `{"mesh":"mesh-1"}`, "1/0 0/1"}
			check := func(when string) {
				t.Helper()
				if diff := cmp.Diff(want, hotStateOf(pod)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", when, diff)
				}
			}
			check("injected")
			object := set("mesh:v2").Map()
			object["metadata"].(map[string]any)["resourceVersion"] = "22"
			in := inplace.UpdateInput{Pod: pod, Compiled: fixtures.Compiled(t, object), StateBefore: podstate.WasNotReadyByUpdate, Now: updatedAt}
			tryReset := func() inplace.Update {
				t.Helper()
				in.Pod = pod
				u, err := reset(in)
				if err != nil {
					t.Fatal(err)
				}
				return u
			}
			// says compares what is known of the write long after it.
			says := func(when string, carriedOut, resets bool) {
				t.Helper()
				revision, r := inplace.RevisionOf(in.Compiled), podstate.FromPod(pod)
				if w := revision.Written(r); w.IsCarriedOut(updatedAt.Unix()+3600) != carriedOut || revision.Resets(r) != resets || w.StateBefore != podstate.WasNotReadyByUpdate {
					t.Errorf("%s: written %+v, resets %v; want %v, %v", when, w, revision.Resets(r), carriedOut, resets)
				}
			}
			if u := tryReset(); u.Patch != nil {
				t.Errorf("a Pod without an upgrade is reset: %s", u.Patch)
			}

			u, err := update(in)
			if err != nil || u.Verdict.Method != inplace.Images || len(u.Changes) != 1 || u.Changes[0].Container != "mesh-2" {
				t.Fatalf("UpdateInPlace = %+v, %v", u, err)
			}
			pod = patched(t, pod, u.Patch)
			pod.Generation++
			want = hotState{"mesh:v1", "mesh:v2", `{"mesh":"mesh-2"}`, "1/22 22/1"}
			check("upgraded")
			says("upgraded", false, false)
			in.Pod = pod
			if again, err := update(in); err != nil || again.Verdict.Method != inplace.Current {
				t.Errorf("the second time: %+v, %v", again, err)
			}
			if u := tryReset(); u.Patch != nil {
				t.Errorf("the old container is given up before the new one runs: %s", u.Patch)
			}

			// The app is not ready, and the new container runs.
			kubeletReports(pod, "mesh-2", "", updatedAt)
			statusOf(pod, "app").Ready = false
			says("both run", false, true)
			hash := pod.Annotations[appsv1beta1.AnnotationHash]
			in.StateBefore, in.Now = podstate.WasNotReady, updatedAt.Add(30*time.Second)
			u = tryReset()
			if u.Patch == nil {
				t.Fatal("the old container is kept")
			}
			pod = patched(t, pod, u.Patch)
			pod.Generation++
			want = hotState{"empty:1", "mesh:v2", `{"mesh":"mesh-2"}`, "0/22 22/0"}
			check("reset")
			if pod.Annotations[appsv1beta1.AnnotationHash] != hash {
				t.Error("the reset wrote the revision that the Pod has")
			}
			if e := entryOf(t, pod); e.Hash != podstate.ParseHashes(hash).Hash("mesh") || e.StateBefore != podstate.WasNotReadyByUpdate || !e.At.Equal(in.Now) {
				t.Errorf("the reset records %+v", e)
			}
			says("reset", false, false)
			kubeletReports(pod, "mesh-1", "", updatedAt.Add(time.Minute))
			says("the old container idles", true, false)
			if u := tryReset(); u.Patch != nil {
				t.Errorf("a second reset: %s", u.Patch)
			}
		})
	}
}

// kubeletReports makes the Pod's kubelet report one container as waiting, or as running if
// waiting is "", and the condition Ready that follows from the Pod's containers.
func kubeletReports(pod *corev1.Pod, container, waiting string, at time.Time) {
	cluster.Acknowledge(pod)
	if waiting == "" {
		cluster.Start(pod, container, at)
	} else {
		cluster.Wait(pod, container, waiting)
	}
	cluster.SetReady(pod, waiting == "", at)
}

// hotUpdate brings a Pod to an image, and checks which container gets it.
func hotUpdate(t *testing.T, pod *corev1.Pod, image, want string, now time.Time) *corev1.Pod {
	t.Helper()
	u, err := update(inplace.UpdateInput{Pod: pod, Compiled: fixtures.Compiled(t, hotSidecar(image).Map()), Now: now})
	if err != nil || len(u.Changes) != 1 || u.Changes[0].Container != want || u.Changes[0].To != image {
		t.Fatalf("the update to %s is %+v, %v; want it in %s", image, u, err, want)
	}
	pod = patched(t, pod, u.Patch)
	pod.Generation++
	return pod
}

// hotReset ends the hot upgrade of a Pod if it is to be ended.
func hotReset(t *testing.T, pod *corev1.Pod, image string, now time.Time) (*corev1.Pod, bool) {
	t.Helper()
	u, err := reset(inplace.UpdateInput{Pod: pod, Compiled: fixtures.Compiled(t, hotSidecar(image).Map()), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	if u.Patch == nil {
		return pod, false
	}
	return patched(t, pod, u.Patch), true
}

// A rollback takes a bad hot upgrade back: the Pod is then as it was injected.
func TestABadHotUpgradeIsTakenBack(t *testing.T) {
	pod := running(t, hotSidecar("mesh:v1"))
	injected := hotStateOf(pod)
	pod = hotUpdate(t, pod, "mesh:v2", "mesh-2", updatedAt)
	kubeletReports(pod, "mesh-2", "ImagePullBackOff", updatedAt.Add(5*time.Second))
	set := hotSidecar("mesh:v1").Map()
	u, err := update(inplace.UpdateInput{Pod: pod, Compiled: fixtures.Compiled(t, set), Now: updatedAt.Add(time.Minute)})
	if err != nil || len(u.Changes) != 1 || u.Changes[0].Container != "mesh-2" || u.Changes[0].To != "empty:1" {
		t.Fatalf("the rollback is %+v, %v; want the empty image in mesh-2", u, err)
	}
	pod = patched(t, pod, u.Patch)
	pod.Generation++
	if diff := cmp.Diff(injected, hotStateOf(pod)); diff != "" {
		t.Errorf("after the rollback (-injected +got):\n%s", diff)
	}
	kubeletReports(pod, "mesh-2", "", updatedAt.Add(2*time.Minute))
	if _, reset := hotReset(t, pod, "mesh:v1", updatedAt.Add(2*time.Hour)); reset {
		t.Error("it is reset although no hot upgrade is under way")
	}
	if mesh := podstate.MakeName("mesh"); !written(pod).IsCarriedOut(updatedAt.Add(2*time.Hour).Unix()) || podstate.FromPod(pod).HotUpgraded(mesh) {
		t.Errorf("written %+v, upgraded %t", written(pod), podstate.FromPod(pod).HotUpgraded(mesh))
	}
	if u, err := update(inplace.UpdateInput{Pod: pod, Compiled: fixtures.Compiled(t, set), Now: updatedAt.Add(2 * time.Hour)}); err != nil || u.Verdict.Method != inplace.Current {
		t.Errorf("in the end: %+v, %v", u, err)
	}
}

// The end of a hot upgrade does not end a resize.
func TestAResetKeepsTheRecordOfAResize(t *testing.T) {
	pod := hotUpdate(t, running(t, hotSidecar("mesh:v1")), "mesh:v2", "mesh-2", updatedAt)
	kubeletReports(pod, "mesh-2", "", updatedAt.Add(time.Second))
	entries, err := podstate.InPlaceRecordsOf(pod)
	if err != nil {
		t.Fatal(err)
	}
	pod.Annotations[appsv1beta1.AnnotationInPlace] = entries.WithResize("mesh", podstate.Resize{Hash: "h", At: updatedAt, Containers: []string{"mesh-1"}}).Format(pod.UID)
	pod, reset := hotReset(t, pod, "mesh:v2", updatedAt.Add(time.Minute))
	if entries, err = podstate.InPlaceRecordsOf(pod); !reset || err != nil || entries.Resizes["mesh"].Hash != "h" {
		t.Errorf("reset %v: %+v, %v", reset, entries, err)
	}
}

// A hot upgrade that OpenKruise began is ended too. Then the record says how the Pod is.
func TestAHotUpgradeOfOpenKruiseIsEnded(t *testing.T) {
	pod := hotUpdate(t, running(t, hotSidecar("mesh:v1")), "mesh:v2", "mesh-2", updatedAt)
	delete(pod.Annotations, appsv1beta1.AnnotationInPlace)
	compiled := fixtures.Compiled(t, hotSidecar("mesh:v2").Map())
	kubeletReports(pod, "mesh-2", "", updatedAt)
	if !inplace.RevisionOf(compiled).Resets(podstate.FromPod(pod)) {
		t.Error("it cannot be ended")
	}
	u, err := reset(inplace.UpdateInput{Pod: pod, Compiled: compiled, StateBefore: podstate.WasNotReady, Now: updatedAt.Add(time.Minute)})
	if err != nil || u.Patch == nil {
		t.Fatalf("ResetHotUpgrades = %+v, %v", u, err)
	}
	if e := entryOf(t, patched(t, pod, u.Patch)); e.StateBefore != podstate.WasNotReady || e.Hash != compiled.Hash {
		t.Errorf("it records %+v", e)
	}
}
