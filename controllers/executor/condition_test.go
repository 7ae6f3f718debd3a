package executor

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

func TestTheConditionSaysWhichSidecarSetsCanBeUpdated(t *testing.T) {
	early, now := metav1.NewTime(time.Unix(1000, 0)), time.Unix(2000, 0)
	is := func(status corev1.ConditionStatus, reason, message string, since time.Time) corev1.PodCondition {
		return corev1.PodCondition{Type: "SidecarSetUpgradable", Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(since)}
	}
	yes := func(message string, since time.Time) corev1.PodCondition {
		return is("True", "AllSidecarsetUpgradable", message, since)
	}
	no := func(message string, since time.Time) corev1.PodCondition {
		return is("False", "UpdateImmutableField", message, since)
	}
	tests := map[string]struct {
		before     []corev1.PodCondition
		upgradable bool
		want       corev1.PodCondition
		same       bool
	}{
		"the first word":                           {nil, true, yes(`{"log":true}`, now), false},
		"it cannot follow":                         {nil, false, no(`{"log":false}`, now), false},
		"nothing new":                              {[]corev1.PodCondition{no(`{"log":false}`, early.Time)}, false, no(`{"log":false}`, early.Time), true},
		"it can follow again":                      {[]corev1.PodCondition{no(`{"log":false}`, early.Time)}, true, yes(`{"log":true}`, now), false},
		"another SidecarSet's word stays":          {[]corev1.PodCondition{no(`{"mesh":false}`, early.Time)}, true, no(`{"log":true,"mesh":false}`, early.Time), false},
		"T23: a SidecarSet that is not carried":    {[]corev1.PodCondition{no(`{"gone":false,"log":true}`, early.Time)}, true, yes(`{"log":true}`, now), false},
		"a message that cannot be read":            {[]corev1.PodCondition{no(`sorry`, early.Time)}, true, yes(`{"log":true}`, now), false},
		"a message that is not about SidecarSets":  {[]corev1.PodCondition{no(`[1]`, early.Time)}, false, no(`{"log":false}`, early.Time), false},
		"conditions of other types are left alone": {[]corev1.PodCondition{{Type: "Ready", Status: "True"}}, true, yes(`{"log":true}`, now), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{appsv1beta1.AnnotationInjectedList: "log,mesh"}}}
			pod.Status.Conditions = tc.before
			got, differs := upgradableCondition(pod, "log", tc.upgradable, now)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("the condition (-want +got):\n%s", diff)
			}
			if differs == tc.same {
				t.Errorf("it is written: %t", differs)
			}
		})
	}
}
