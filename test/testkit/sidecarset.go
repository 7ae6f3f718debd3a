package testkit

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// AppLabels are those of Pods that a SidecarSet of NewPatientSet selects.
func AppLabels(sidecarSet string) map[string]string { return map[string]string{"app": sidecarSet} }

// NewSet returns a SidecarSet that adds a container of its own name to the Pods
// of the namespace with these labels.
func NewSet(name, namespace string, labels map[string]string) *unstructured.Unstructured {
	matchLabels := map[string]any{}
	for key, value := range labels {
		matchLabels[key] = value
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": appsv1beta1.GroupVersion.String(), "kind": "SidecarSet",
		"metadata": map[string]any{"name": name, "annotations": map[string]any{appsv1beta1.AnnotationMinReadySeconds: "0"}},
		"spec": map[string]any{
			"selector":          map[string]any{"matchLabels": matchLabels},
			"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": namespace}},
			"updateStrategy":    map[string]any{"type": "NotUpdate"},
			"volumes":           []any{map[string]any{"name": name, "emptyDir": map[string]any{}}},
			"containers": []any{map[string]any{
				"name": name, "image": "example.com/sidecar:v1", "podInjectPolicy": "AfterAppContainer",
				"env":          []any{map[string]any{"name": "LEVEL", "value": "info"}},
				"volumeMounts": []any{map[string]any{"name": name, "mountPath": "/var/log/sidecar"}},
				"resources":    map[string]any{"requests": map[string]any{"cpu": "10m", "memory": "32Mi"}},
			}},
		},
	}}
}

// NewPatientSet returns a SidecarSet of NewSet for Pods with its AppLabels. API servers wait
// for its webhook as long as possible, so that a busy machine does not fail the test.
func NewPatientSet(name, namespace string) *unstructured.Unstructured {
	set := NewSet(name, namespace, AppLabels(name))
	set.SetAnnotations(map[string]string{
		appsv1beta1.AnnotationTimeoutSeconds:  fmt.Sprint(appsv1beta1.MaxTimeoutSeconds),
		appsv1beta1.AnnotationMinReadySeconds: "0",
	})
	return set
}

// TryPod makes no Pod, but would have it injected by the SidecarSet: with that image, if any.
func TryPod(ctx context.Context, client kubernetes.Interface, namespace, sidecarSet, image string) error {
	options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	pod, err := client.CoreV1().Pods(namespace).Create(ctx, NewPod(AppLabels(sidecarSet)), options)
	if err != nil {
		return err
	}
	if !Injected(pod, []string{sidecarSet}) {
		return fmt.Errorf("SidecarSet %s is not injected", sidecarSet)
	}
	if got := pod.Spec.Containers[1].Image; image != "" && got != image {
		return fmt.Errorf("SidecarSet %s is injected with %s, want %s", sidecarSet, got, image)
	}
	return nil
}
