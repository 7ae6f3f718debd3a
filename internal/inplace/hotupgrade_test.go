package inplace

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

const (
	emptyImage = "empty:v1"
	oldImage   = "proxy:v1"
	newImage   = "proxy:v2"
)

var proxy = HotSidecar{Name: "c", Image: newImage, EmptyImage: emptyImage}

// hotPod has both containers of sidecar c, with images and the versions "version/alt".
func hotPod(first, second string, versions ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			appsv1beta1.AnnotationVersionPrefix + "c-1":    versions[0],
			appsv1beta1.AnnotationVersionPrefix + "c-2":    versions[1],
			appsv1beta1.AnnotationVersionAltPrefix + "c-1": versions[2],
			appsv1beta1.AnnotationVersionAltPrefix + "c-2": versions[3],
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "app", Image: "app:v1"}, {Name: "c-1", Image: first}, {Name: "c-2", Image: second},
		}},
	}
}

func running(names ...string) func(string) bool {
	return func(name string) bool { return slices.Contains(names, name) }
}

func TestAHotUpgradeReplacesTheIdleContainer(t *testing.T) {
	for name, tc := range map[string]struct {
		first, second, working string
		runs                   []string
		want                   string
	}{
		"the first is idle":                     {emptyImage, oldImage, "c-2", []string{"c-1", "c-2"}, "c-1"},
		"the second is idle":                    {oldImage, emptyImage, "c-1", []string{"c-1", "c-2"}, "c-2"},
		"none is idle and the second fails":     {oldImage, "proxy:bad", "c-2", []string{"c-1"}, "c-2"},
		"none is idle and the first fails":      {"proxy:bad", oldImage, "c-1", []string{"c-2"}, "c-1"},
		"none is idle and both run":             {oldImage, "proxy:v1.5", "c-2", []string{"c-1", "c-2"}, "c-1"},
		"none is idle and none runs":            {oldImage, "proxy:bad", "c-2", nil, "c-1"},
		"none is idle, and no record of any":    {oldImage, "proxy:v1.5", "", []string{"c-1", "c-2"}, "c-1"},
		"none is idle, and a record of another": {oldImage, "proxy:v1.5", "d-1", []string{"c-1", "c-2"}, "c-1"},
	} {
		step, ok := proxy.Upgrade(hotPod(tc.first, tc.second, "1", "22", "22", "1"), tc.working, "30", running(tc.runs...))
		if !ok || step.Container != tc.want || step.Working != tc.want || step.Image != newImage {
			t.Errorf("%s: %+v, %v, want %s", name, step, ok, tc.want)
		}
	}
}

// A webhook has rewritten the images of a pair, so the annotations alone say which container idles:
// the upgrade does not take the other one, even if that fails.
func TestAHotUpgradeReplacesTheContainerThatIdlesByItsAnnotations(t *testing.T) {
	for want, versions := range map[string][]string{"c-2": {"1", "0", "0", "1"}, "c-1": {"0", "22", "22", "0"}} {
		pod := hotPod("mirror/a", "mirror/b", versions...)
		if step, ok := proxy.Upgrade(pod, "c-1", "30", running(want)); !ok || step.Container != want {
			t.Errorf("versions %v: %+v, %v, want %s", versions, step, ok, want)
		}
	}
}

// If hotUpgradeEmptyImage changes, every Pod has the wrong idle image. That does not put a
// Pod in the middle of an upgrade.
func TestAChangedHotUpgradeEmptyImageResetsNoPod(t *testing.T) {
	other := HotSidecar{Name: "c", Image: oldImage, EmptyImage: "empty:v2"}
	for name, pod := range map[string]*corev1.Pod{
		"injected":           hotPod(oldImage, emptyImage, "1", "0", "0", "1"),
		"upgraded and reset": hotPod(oldImage, emptyImage, "22", "0", "0", "22"),
	} {
		if step, ok := other.Reset(pod, "c-1", running("c-1", "c-2")); ok || other.Upgrading(pod, "c-1") {
			t.Errorf("%s: %+v, %v", name, step, ok)
		}
	}
}
