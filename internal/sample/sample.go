// Package sample makes a Pod that a SidecarSet selects, to try under dry-run what API servers do
// with such Pods. It does not know whether a SidecarSet selects the Pod of a Namespace.
package sample

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Labels returns labels that most selectors match. A selector with several expressions for one
// key may not match them.
func Labels(selector *metav1.LabelSelector) labels.Set {
	sample := labels.Set{}
	if selector == nil {
		return sample
	}
	maps.Copy(sample, selector.MatchLabels)
	for _, r := range selector.MatchExpressions {
		_, has := sample[r.Key]
		switch {
		case has:
		case r.Operator == metav1.LabelSelectorOpIn && len(r.Values) > 0:
			sample[r.Key] = r.Values[0]
		case r.Operator == metav1.LabelSelectorOpExists:
			sample[r.Key] = "probe"
		}
	}
	return sample
}

// Pod returns a Pod with these labels, whose one container has an image that does not exist, no
// resources, and the security settings of the restricted Pod Security Standard.
func Pod(namespace string, set labels.Set) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "sidecarset-probe-", Labels: set},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "sidecarset-probe", Image: "sidecarset-probe",
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			}},
		},
	}
}
