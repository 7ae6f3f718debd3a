package rollout_test

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

func byOrder(keys ...string) *appsv1beta1.UpdatePriorityStrategy {
	p := &appsv1beta1.UpdatePriorityStrategy{}
	for _, key := range keys {
		p.OrderPriority = append(p.OrderPriority, appsv1beta1.UpdatePriorityOrderTerm{OrderedKey: key})
	}
	return p
}

func scatterOver(key, value string) []appsv1beta1.UpdateScatterTerm {
	return []appsv1beta1.UpdateScatterTerm{{Key: key, Value: value}}
}

func matching(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}
