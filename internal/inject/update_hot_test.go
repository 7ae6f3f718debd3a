package inject_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
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

// kubeletRuns has the Pod run the image of one container.
func kubeletRuns(pod *corev1.Pod, name string) {
	pod.Status.ObservedGeneration = pod.Generation
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			if s := &statuses[i]; s.Name == name {
				for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
					if c.Name == name {
						s.Image, s.ImageID = c.Image, "docker.io/library/"+name+"@sha256:"+c.Image
					}
				}
				s.ContainerID += "'"
			}
		}
	}
}

func hotNative(image string) *fixtures.SidecarSetBuilder {
	return fixtures.SidecarSet("mesh").Native("mesh", image).
		With("upgradeStrategy", map[string]any{"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:1"})
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
			in := inject.UpdateInput{Pod: pod, Program: fixtures.Program(t, object), Now: updatedAt}
			reset := func() inject.Update {
				t.Helper()
				in.Pod = pod
				u, err := inject.ResetHotUpgrades(in)
				if err != nil {
					t.Fatal(err)
				}
				return u
			}
			if u := reset(); u.Patch != nil {
				t.Errorf("a Pod without an upgrade is reset: %s", u.Patch)
			}

			u, err := inject.UpdateInPlace(in)
			if err != nil || u.Verdict.Way != inplace.Images || len(u.Changes) != 1 || u.Changes[0].Container != "mesh-2" {
				t.Fatalf("UpdateInPlace = %+v, %v", u, err)
			}
			pod = patched(t, pod, u.Patch)
			pod.Generation++
			want = hotState{"mesh:v1", "mesh:v2", `{"mesh":"mesh-2"}`, "1/22 22/1"}
			check("upgraded")
			in.Pod = pod
			if again, err := inject.UpdateInPlace(in); err != nil || again.Verdict.Way != inplace.Current {
				t.Errorf("the second time: %+v, %v", again, err)
			}
			if u := reset(); u.Patch != nil {
				t.Errorf("the old container is given up before the new one runs: %s", u.Patch)
			}

			// The app is not ready, and the new container runs.
			kubeletRuns(pod, "mesh-2")
			for i := range pod.Status.ContainerStatuses {
				if s := &pod.Status.ContainerStatuses[i]; s.Name == "app" {
					s.Ready = false
				}
			}
			hash := pod.Annotations[appsv1beta1.AnnotationHash]
			u = reset()
			if u.Patch == nil {
				t.Fatal("the old container is kept")
			}
			pod = patched(t, pod, u.Patch)
			pod.Generation++
			want = hotState{"empty:1", "mesh:v2", `{"mesh":"mesh-2"}`, "0/22 22/0"}
			check("reset")
			if pod.Annotations[appsv1beta1.AnnotationHash] != hash {
				t.Error("the reset wrote the content that the Pod has")
			}
			if p := podstate.FromPod(pod).Progress(podstate.MakeName("mesh")); p.Generation != pod.Generation || p.State() != inplace.Moving {
				t.Errorf("after the reset, progress is %+v", p)
			}
			if u := reset(); u.Patch != nil {
				t.Errorf("a second reset: %s", u.Patch)
			}
		})
	}
}
