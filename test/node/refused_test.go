package node

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pod Security judges the whole Pod when an image changes: a Pod that is older
// than the namespace's level keeps its image, and takes annotations.
func TestATightenedPodSecurityRefusesImageChanges(t *testing.T) {
	t.Parallel()
	image(t, "security:v1")
	image(t, "security:v2", "VERSION=v2")
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tightened"}}
	if _, err := clients.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := createPod(t, `
metadata: {name: security, namespace: tightened}
spec:
  containers: [{name: plain, image: "REGISTRY/security:v1"}]
`)
	awaitPod(t, pod, "Ready", isReady)
	patch := func(body string) error {
		_, err := clients.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, "application/strategic-merge-patch+json", []byte(body), metav1.PatchOptions{})
		return err
	}
	label := []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	if _, err := clients.CoreV1().Namespaces().Patch(t.Context(), namespace.Name, "application/merge-patch+json", label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	err := patch(`{"spec":{"containers":[{"name":"plain","image":"` + registry + `/security:v2"}]}}`)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "violates PodSecurity") {
		t.Errorf("an image change is answered with %v; want 403 of Pod Security", err)
	}
	if err := patch(`{"metadata":{"annotations":{"a":"b"}}}`); err != nil {
		t.Errorf("an annotation is refused: %v", err)
	}
}
