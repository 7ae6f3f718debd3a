package controllers

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// webPod carries SidecarSet "log" and is ready.
func webPod(i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprint("web-", i), UID: types.UID(fmt.Sprint("pod-", i)), Labels: map[string]string{"app": "web"},
			Annotations: map[string]string{appsv1beta1.AnnotationInjectedList: "log", appsv1beta1.AnnotationHash: `{"log":{"hash":"h1"}}`},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "log", Image: "log:1"}}},
		Status: corev1.PodStatus{
			Phase:             corev1.PodRunning,
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "log", Image: "log:1", ImageID: "log@sha256:a"}},
		},
	}
}

func notReady(pod *corev1.Pod) *corev1.Pod {
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	return pod
}
