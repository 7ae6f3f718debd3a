package controllers

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
)

// setOf is SidecarSet log in a generation, with hash and image of that number, as the store has it now.
func (r *rig) setOf(t *testing.T, generation int64, number, newPods string) *appsv1beta1.SidecarSet {
	t.Helper()
	set := fixtures.LogSet(generation)
	set.Annotations[appsv1beta1.AnnotationHash] = "h" + number
	set.Annotations[appsv1beta1.AnnotationNewPods] = newPods
	set.Spec.Containers[0].Image = "log:" + number
	set.Status = r.written(t)
	return set
}

// storeSet edits the spec and the annotations, as a user does, and compiles what is stored then.
func (r *rig) storeSet(t *testing.T, generation int64, number, newPods string) {
	t.Helper()
	set := untyped(t, r.setOf(t, generation, number, newPods))
	r.edit(t, func(o *unstructured.Unstructured) error {
		o.SetGeneration(generation)
		o.SetAnnotations(set.GetAnnotations())
		o.Object["spec"] = set.Object["spec"]
		return nil
	})
	r.compiled(t, r.setOf(t, generation, number, newPods))
	r.judge("set-1", generation, inForce)
}

// podOf is a Pod that was created with a number, and has been Ready for a time.
func podOf(i int, number string, ready time.Duration) *corev1.Pod {
	pod := webPod(i)
	pod.Annotations[appsv1beta1.AnnotationHash] = `{"log":{"hash":"h` + number + `"}}`
	pod.Spec.Containers[0].Image = "log:" + number
	pod.Status.ContainerStatuses[0].Image = "log:" + number
	pod.Status.Conditions[0].LastTransitionTime = metav1.NewTime(time.Now().Add(-ready))
	return pod
}

// An edit is held back until three running Pods are available with it, and Ready says so. The edit itself
// changes nothing that the leader has written: it holds without a leader.
func TestAnEditIsHeldBackUntilPodsAreAvailable(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.feed(t, podOf(1, "1", time.Hour), podOf(2, "1", time.Hour), podOf(3, "1", time.Hour), podOf(4, "1", time.Hour), podOf(5, "1", time.Hour))
		r.storeSet(t, 1, "1", "Stable")
		r.pass(writeInterval)
		first := r.written(t)
		if first.StableRevision == "" || first.StableRevision != first.LatestRevision {
			t.Fatalf("the first revision is not stable: %+v", first)
		}
		wants := func(what, reason, says string, isStable bool) {
			t.Helper()
			r.compiled(t, r.setOf(t, r.api.object().GetGeneration(), "2", r.api.object().GetAnnotations()[appsv1beta1.AnnotationNewPods]))
			r.pass(2 * time.Second)
			s := r.written(t)
			c := meta.FindStatusCondition(s.Conditions, appsv1beta1.ConditionReady)
			if c == nil || c.Reason != reason || !strings.Contains(c.Message, says) || (s.StableRevision == s.LatestRevision) != isStable {
				t.Fatalf("%s: %d of %d updated, stable %s, latest %s, %+v", what, s.UpdatedPods, s.MatchedPods, s.StableRevision, s.LatestRevision, c)
			}
		}
		r.storeSet(t, 2, "2", "Stable")
		if s := r.written(t); s.StableRevision != first.StableRevision {
			t.Fatal("the edit is stable at once")
		}
		wants("an edit", "RevisionNotStable", "0 of 3 available", false)
		if n := metricsOf(r.m.held.WithLabelValues("log")); n != 1 {
			t.Errorf("%d gauges", n)
		}
		r.feed(t, podOf(6, "2", time.Minute), podOf(7, "2", 10*time.Second))
		wants("one Pod is available", "RevisionNotStable", "1 of 3 available", false)
		r.pass(30 * time.Second)
		wants("a second one, with time", "RevisionNotStable", "2 of 3 available", false)
		r.feed(t, podOf(8, "2", time.Minute))
		wants("three", "Injecting", "", true)
		if told := r.heard(); !slices.Contains(told, "log Normal RevisionNotStable") || told[len(told)-1] != "log Normal Injecting" {
			t.Errorf("Events %v", told)
		}
	})
}

// Without the annotation, Ready does not wait; the stable revision follows in the same way, so that the
// annotation has a revision to fall back to.
func TestWithoutTheAnnotationReadyDoesNotWait(t *testing.T) {
	control(t, 1, func(t *testing.T, r *rig) {
		r.feed(t, podOf(1, "1", time.Hour), podOf(2, "1", time.Hour))
		r.storeSet(t, 1, "1", "Latest")
		r.pass(writeInterval)
		r.storeSet(t, 2, "2", "Latest")
		r.pass(writeInterval)
		s := r.written(t)
		if !meta.IsStatusConditionTrue(s.Conditions, appsv1beta1.ConditionReady) || s.StableRevision == s.LatestRevision {
			t.Errorf("status %+v", s)
		}
	})
}
