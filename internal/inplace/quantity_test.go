package inplace_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sidecarset/operator/internal/inplace"
)

// Kubelets report resources, and an attacker may take over a kubelet. This test ends
// because the quantities are not compared: that would make numbers of 900 million digits.
func TestQuantitiesThatTakeHoursAreNotCompared(t *testing.T) {
	sizes := inplace.Sizes{Values: []inplace.Size{{Container: "log", Resource: corev1.ResourceCPU, Values: []string{"1", "1"}}}}
	const one, huge = `{"requests":{"cpu":"1"},"limits":{"cpu":"1"}}`, `{"requests":{"cpu":"1e900000001"},"limits":{"cpu":"1e900000001"}}`
	for _, tc := range []struct{ spec, status string }{{one, huge}, {huge, one}, {huge, huge}} {
		reported := resources(t, tc.status)
		pod := &corev1.Pod{
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "log", Resources: resources(t, tc.spec)}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
				{Name: "log", Resources: &reported, AllocatedResources: reported.Requests},
			}},
		}
		if got, _ := sizes.Observe(pod); got == inplace.ResizeDone {
			t.Errorf("%s of %s: the resize is done", tc.status, tc.spec)
		}
	}
}

func TestContentsWithHugeQuantitiesDifferInMoreThanSizes(t *testing.T) {
	content := func(cpu string) map[string]any {
		return spec(t, `{"name":"log","resources":{"requests":{"cpu":"`+cpu+`"}}}`, "")
	}
	for _, cpu := range []string{"1e-900000000", "1e900000001", "1111111111111111111e900000000"} {
		if d := inplace.Compare(content(cpu), content("1")); !d.Other || len(d.Resources) != 0 {
			t.Errorf("%s: %+v", cpu, d)
		}
	}
}
