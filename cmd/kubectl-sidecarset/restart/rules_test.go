package restart

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

func TestFind(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "")
	c.deployment("web", 2, func(d *appsv1.Deployment) { d.Labels = map[string]string{"kustomize.toolkit.fluxcd.io/name": "apps"} })
	c.deployment("paused", 1, func(d *appsv1.Deployment) { d.Spec.Paused = true })
	c.deployment("owned", 1, func(d *appsv1.Deployment) {
		d.OwnerReferences = []metav1.OwnerReference{*controlledBy("x/v1", "Mesh", "m")}
	})
	c.objects = append(c.objects,
		&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}, Spec: appsv1.StatefulSetSpec{UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
			Type: appsv1.RollingUpdateStatefulSetStrategyType, RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(2))},
		}}},
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "ds"}, Spec: appsv1.DaemonSetSpec{UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}}})
	c.pod("db-0", controlledBy("apps/v1", "StatefulSet", "db"))
	c.pod("ds-0", controlledBy("apps/v1", "DaemonSet", "ds"))
	c.pod("clone-0", controlledBy("apps.kruise.io/v1alpha1", "CloneSet", "clone"))
	c.pod("clone-1", controlledBy("apps.kruise.io/v1alpha1", "CloneSet", "clone"), func(p *corev1.Pod) {
		p.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
	})
	c.pod("job-0", controlledBy("batch/v1", "Job", "job"))
	c.pod("task-0", controlledBy("argoproj.io/v1alpha1", "Workflow", "task"), func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
	c.pod("bare", nil)
	c.pod("static", nil, func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} })
	c.pod("other", nil, func(p *corev1.Pod) { p.Labels = nil })

	text := func(s *Survey) (all []string) {
		for _, w := range s.Workloads {
			all = append(all, strings.TrimSpace(fmt.Sprintf("%s %d %s %s %t", w, w.Pods(), w.Named, w.Warning, w.Evict)))
		}
		for _, left := range s.Left {
			all = append(all, left.Pod.Name+" "+left.Why)
		}
		return all
	}
	for _, tc := range []struct {
		evict bool
		want  []string
	}{
		{false, []string{
			"CloneSet shop/clone 2 kubectl sidecarset does not know how", "DaemonSet shop/ds 1 its updateStrategy is OnDelete", "Deployment shop/owned 1 Mesh m controls it",
			"Deployment shop/paused 1 it is paused", "Deployment shop/web 2  Flux manages it", "StatefulSet shop/db 1 its own partition 2",
			"bare no controller", "job-0 it belongs to a Job", "task-0 it runs to completion",
		}},
		{true, []string{
			"CloneSet shop/clone 1 kubectl", "DaemonSet shop/ds 1", "Deployment shop/owned 1", "Deployment shop/paused 1", "Deployment shop/web 2", "StatefulSet shop/db 1",
			"bare", "clone-1 an annotation forbids", "job-0", "task-0",
		}},
	} {
		got := text(c.find(tc.evict))
		if len(got) != len(tc.want) {
			t.Errorf("evict %t: %q", tc.evict, got)
			continue
		}
		for i, want := range tc.want {
			if !strings.HasPrefix(got[i], want) {
				t.Errorf("evict %t: %q, want %q", tc.evict, got[i], want)
			}
		}
	}
}

func TestNothingIsReplacedThatWouldComeBackAsItIs(t *testing.T) {
	t.Parallel()
	inForce := func(change func(*appsv1beta1.SidecarSet)) *appsv1beta1.SidecarSet {
		set := &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: "agent", Generation: 2}}
		set.Status.ObservedGeneration = 2
		set.Status.Conditions = []metav1.Condition{{Type: appsv1beta1.ConditionReady, Status: metav1.ConditionTrue, ObservedGeneration: 2}}
		change(set)
		return set
	}
	for want, change := range map[string]func(*appsv1beta1.SidecarSet){
		"":                    func(*appsv1beta1.SidecarSet) {},
		"is being deleted":    func(s *appsv1beta1.SidecarSet) { s.DeletionTimestamp = new(metav1.Now()) },
		"injection is paused": func(s *appsv1beta1.SidecarSet) { s.Spec.InjectionStrategy.Paused = true },
		"rollout is paused":   func(s *appsv1beta1.SidecarSet) { s.Spec.UpdateStrategy.Paused = true },
		"names revisionName r1": func(s *appsv1beta1.SidecarSet) {
			s.Spec.InjectionStrategy.Revision = &appsv1beta1.SidecarSetInjectRevision{RevisionName: new("r1")}
		},
		"not observed generation 3": func(s *appsv1beta1.SidecarSet) { s.Generation = 3 },
		"it is not Ready":           func(s *appsv1beta1.SidecarSet) { s.Status.Conditions[0].Status = metav1.ConditionFalse },
	} {
		if got, _ := Stopped(inForce(change)); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("Stopped() = %q, want %q", got, want)
		}
	}

	c := newCluster(t, "  injectionStrategy: {paused: true}\n")
	c.deployment("web", 1)
	if s := c.find(true); len(s.Workloads) != 0 || len(s.Left) != 1 || !strings.Contains(s.Left[0].Why, "would not get the current revision either") {
		t.Errorf("%+v", s)
	}
}

func TestSurges(t *testing.T) {
	t.Parallel()
	one := func(surge *intstr.IntOrString, kind appsv1.DeploymentStrategyType, replicas int32) client.Object {
		return &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &replicas, Strategy: appsv1.DeploymentStrategy{Type: kind, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: surge}}}}
	}
	for _, tc := range []struct {
		object client.Object
		want   bool
	}{
		{one(nil, "", 1), true},
		{one(new(intstr.FromString("25%")), "", 1), true},
		{one(new(intstr.FromInt32(0)), "", 1), false},
		{one(nil, appsv1.RecreateDeploymentStrategyType, 1), false},
		{one(nil, "", 2), false},
		{&appsv1.StatefulSet{}, false},
	} {
		if got := surges(tc.object); got != tc.want {
			t.Errorf("surges(%+v) = %t", tc.object, got)
		}
	}
}
