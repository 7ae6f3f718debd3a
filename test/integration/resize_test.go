package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

func cpuOf(t *testing.T, p *corev1.Pod) string {
	t.Helper()
	for _, c := range p.Spec.Containers {
		if c.Name == "side" {
			return c.Resources.Requests.Cpu().String()
		}
	}
	t.Fatalf("%s has no sidecar", p.Name)
	return ""
}

// awaitSize waits until all Pods have the content of the SidecarSet, with this cpu.
func (f *fleet) awaitSize(t *testing.T, pods int, cpu string) {
	t.Helper()
	f.awaitCounters(t, pods, pods)
	set, err := testkit.Get(t.Context(), api, f.set.GetName())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range f.pods(t) {
		if got := cpuOf(t, &p); got != cpu {
			t.Errorf("%s: the sidecar has cpu %s, want %s", p.Name, got, cpu)
		}
		for _, key := range []string{appsv1beta1.AnnotationHash, appsv1beta1.AnnotationHashWithoutImage} {
			if got := podstate.ParseHashes(p.Annotations[key]).Hash(set.Name); got != set.Annotations[key] {
				t.Errorf("%s: %s is %s, want that of the SidecarSet, %s", p.Name, key, got, set.Annotations[key])
			}
		}
		if strings.Contains(p.Annotations[appsv1beta1.AnnotationInPlace], "resizes") {
			t.Errorf("%s: a resize is still on record: %s", p.Name, p.Annotations[appsv1beta1.AnnotationInPlace])
		}
	}
}

func needsResize(t *testing.T) {
	t.Helper()
	if cluster.Minor() < 33 {
		t.Skip("SKIP: API servers resize Pods since Kubernetes 1.33")
	}
}

// A LimitRange gives a sidecar without resources its defaults. That is no resize by another
// program: the first resize that the author asks for is done.
func TestTheFirstResizeAfterDefaultsOfALimitRange(t *testing.T) {
	t.Parallel()
	needsResize(t)
	const pods = 2
	f := newFleet(t, rolling, 0, &testkit.Kubelet{})
	create(t, &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "defaults"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type:           corev1.LimitTypeContainer,
			Default:        corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("256Mi")},
			DefaultRequest: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
		}}},
	})
	await.Within(t, rolloutPatience, "the LimitRange to apply", func(ctx context.Context) error {
		p := pod(f.namespace, "probe", "app=web")
		if err := api.Create(ctx, p, client.DryRunAll); err != nil {
			return err
		}
		if len(p.Spec.Containers) != 2 || cpuOf(t, p) != "100m" {
			return fmt.Errorf("a Pod has the containers %+v", p.Spec.Containers)
		}
		return nil
	})
	for i := range pods {
		create(t, pod(f.namespace, fmt.Sprintf("p-%02d", i), "app=web"))
	}
	f.awaitCounters(t, pods, pods)
	f.update(t, map[string]any{"containers": []any{map[string]any{
		"name": "side", "image": "example.com/side:v1", "resources": map[string]any{
			"requests": map[string]any{"cpu": "200m", "memory": "64Mi"}, "limits": map[string]any{"cpu": "2", "memory": "256Mi"},
		},
	}}})
	f.awaitSize(t, pods, "200m")
}
