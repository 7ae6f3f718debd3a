package recreate_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/recreate"
)

func TestModeOf(t *testing.T) {
	for text, want := range map[string]recreate.Mode{
		"": recreate.Never, "Never": recreate.Never, "Outdated": recreate.Outdated, "Uninjected": recreate.Uninjected, "All": recreate.All,
	} {
		if got, err := recreate.ModeOf(map[string]string{appsv1beta1.AnnotationRecreate: text}); err != nil || got != want {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	got, err := recreate.ModeOf(map[string]string{appsv1beta1.AnnotationRecreate: "true"})
	if got != recreate.Never || err == nil || !strings.Contains(err.Error(), "Outdated") {
		t.Errorf("a value that is not known is %v, %v; want Never, and an error that names the values", got, err)
	}
}

// created is when the Pods of these tests were created; content changed later.
const created, changed = 1000, 2000

func pod(change func(*corev1.Pod)) *podstate.Record {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		CreationTimestamp: metav1.Unix(created, 0),
		OwnerReferences:   []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: new(true)}},
		Annotations:       map[string]string{},
	}}
	change(p)
	return podstate.FromPod(p)
}

func TestJudge(t *testing.T) {
	annotated := func(key, value string) *podstate.Record {
		return pod(func(p *corev1.Pod) { p.Annotations[key] = value })
	}
	tests := map[string]struct {
		change func(*recreate.Question)
		want   inplace.Reason
	}{
		"a Pod that cannot follow":        {func(q *recreate.Question) {}, "evicted"},
		"a Pod that follows in place":     {func(q *recreate.Question) { q.Way = inplace.Images }, ""},
		"a Pod that must be left alone":   {func(q *recreate.Question) { q.Way = inplace.LeaveAlone }, ""},
		"a current Pod":                   {func(q *recreate.Question) { q.Way = inplace.Current }, ""},
		"never":                           {func(q *recreate.Question) { q.Mode = recreate.Never }, ""},
		"an outdated Pod, but Uninjected": {func(q *recreate.Question) { q.Mode = recreate.Uninjected }, ""},
		"an uninjected Pod, but Outdated": {func(q *recreate.Question) { q.Injected, q.Mode = false, recreate.Outdated }, ""},
		"an uninjected Pod":               {func(q *recreate.Question) { q.Injected, q.Way, q.Mode = false, 0, recreate.Uninjected }, "evicted"},
		"an uninjected Pod, and All":      {func(q *recreate.Question) { q.Injected, q.Way, q.Mode = false, 0, recreate.All }, "evicted"},
		"a bare Pod":                      {func(q *recreate.Question) { q.Pod = pod(func(p *corev1.Pod) { p.OwnerReferences = nil }) }, recreate.NoController},
		"a Pod with an owner that is not a controller": {func(q *recreate.Question) {
			q.Pod = pod(func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil })
		}, recreate.NoController},
		"a Pod of a Job": {func(q *recreate.Question) { q.Pod = pod(func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Job" }) }, recreate.ControlledByJob},
		"a Pod that is not restarted when it succeeds": {func(q *recreate.Question) {
			q.Pod = pod(func(p *corev1.Pod) {
				p.OwnerReferences[0].Kind, p.Spec.RestartPolicy = "Workflow", corev1.RestartPolicyOnFailure
			})
		}, inplace.RunToCompletion},
		"a mirror Pod": {func(q *recreate.Question) { q.Pod = annotated(corev1.MirrorPodAnnotationKey, "x") }, inplace.MirrorPod},
		"a Pod that is not safe to evict": {func(q *recreate.Question) {
			q.Pod = annotated("cluster-autoscaler.kubernetes.io/safe-to-evict", "false")
		}, recreate.EvictionForbidden},
		"a Pod that is safe to evict": {func(q *recreate.Question) {
			q.Pod = annotated("cluster-autoscaler.kubernetes.io/safe-to-evict", "true")
		}, "evicted"},
		"a Pod not to be disrupted":            {func(q *recreate.Question) { q.Pod = annotated("karpenter.sh/do-not-disrupt", "true") }, recreate.EvictionForbidden},
		"a Pod not to be disrupted for a time": {func(q *recreate.Question) { q.Pod = annotated("karpenter.sh/do-not-disrupt", "4h") }, recreate.EvictionForbidden},
		"a Pod that may be disrupted":          {func(q *recreate.Question) { q.Pod = annotated("karpenter.sh/do-not-disrupt", "false") }, "evicted"},
		"a Pod newer than the content":         {func(q *recreate.Question) { q.Pod.Order.Created = changed + 1 }, recreate.ReplacementNotInjected},
		"a Pod of the same second":             {func(q *recreate.Question) { q.Pod.Order.Created = changed }, recreate.ReplacementNotInjected},
		"a content of an unknown time":         {func(q *recreate.Question) { q.Since = 0 }, recreate.ReplacementNotInjected},
		"a Pod of an unknown time":             {func(q *recreate.Question) { q.Pod.Order.Created = 0 }, recreate.ReplacementNotInjected},
		"a replacement with another content":   {func(q *recreate.Question) { q.ReplacementCurrent = false }, recreate.ReplacementOutdated},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			q := recreate.Question{
				Mode: recreate.Outdated, Pod: pod(func(*corev1.Pod) {}), Injected: true, Way: inplace.Recreate,
				Since: changed, ReplacementCurrent: true,
			}
			tc.change(&q)
			evictable, reason := recreate.Judge(q)
			if evictable {
				reason = "evicted"
			}
			if reason != tc.want {
				t.Errorf("Judge says %q, want %q", reason, tc.want)
			}
		})
	}
}
