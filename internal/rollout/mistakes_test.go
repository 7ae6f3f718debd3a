package rollout_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures/cluster"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tracker"
)

// show is a mistake in what the watch shows.
func show(change func(c *cluster.Cluster, p *cluster.Pod, shown *corev1.Pod)) cluster.Mistake {
	return cluster.Mistake{Show: change}
}

// unrecorded: the operator's record of an update is not seen, if something is so.
func unrecorded(is func(c *cluster.Cluster, p *cluster.Pod) bool) cluster.Mistake {
	return show(func(c *cluster.Cluster, p *cluster.Pod, shown *corev1.Pod) {
		if p.Written && is(c, p) {
			delete(shown.Annotations, appsv1beta1.AnnotationInPlace)
		}
	})
}

// slides: the time of an update moves on, if something is so.
func slides(is func(p *cluster.Pod) bool) cluster.Mistake {
	return show(func(c *cluster.Cluster, p *cluster.Pod, shown *corev1.Pod) {
		entries, err := podstate.InPlaceRecordsOf(shown)
		for set, e := range entries.Sets {
			if five := time.Unix(int64(c.Now-300), 0); err == nil && is(p) && e.At.Before(five) {
				e.At = five
				entries = entries.With(set, e)
				shown.Annotations[appsv1beta1.AnnotationInPlace] = entries.Format(shown.UID)
			}
		}
	})
}

func forgets(change func(*rollout.Status)) cluster.Mistake { return cluster.Mistake{Status: change} }

func records(change func(podstate.StateBefore) podstate.StateBefore) cluster.Mistake {
	return cluster.Mistake{Before: change}
}

func isCurrent(c *cluster.Cluster, p *cluster.Pod) bool { return p.Content == c.Want }

// plantedMistake is a mistake around Decide, and what finds it: rows of the table whose names begin so, or
// random clusters. Mistakes in a rule itself are found by rules_test.go.
type plantedMistake struct {
	name    string
	mistake cluster.Mistake
	row     string
	seeds   int64 // as many are enough, at most
	leaders string
}

var planted = []plantedMistake{
	{"the first Pod needs proof too", cluster.Mistake{Write: func(c *cluster.Cluster, p *cluster.Pod) bool { return c.Plan.Available > 0 || !p.Ready() }}, "good: 20 Pods", 0, ""},
	{"Pods that fail later count for nothing", unrecorded(func(c *cluster.Cluster, p *cluster.Pod) bool {
		return isCurrent(c, p) && !p.Ready() && !p.Restarting() && c.Now >= p.WrittenAt+33
	}), "breaks after a minute, 20 Pods", 0, ""},
	{"Pods that were down are free", unrecorded(func(c *cluster.Cluster, p *cluster.Pod) bool {
		return isCurrent(c, p) && !p.Ready() && p.Before == podstate.WasNotReady
	}), "an outage of 75 %", 0, ""},
	{"all Pods count as up", records(func(podstate.StateBefore) podstate.StateBefore { return podstate.WasReady }), "all Pods are down, and", 0, ""},
	{"a victim that is written again is another down Pod", records(func(was podstate.StateBefore) podstate.StateBefore {
		if was == podstate.WasNotReadyByUpdate {
			return podstate.WasNotReady
		}
		return was
	}), "five bad edits", 0, ""},
	{"Pods that disappear are forgotten", show(func(_ *cluster.Cluster, p *cluster.Pod, shown *corev1.Pod) {
		if p.Gone || p.Ending {
			shown.Spec.RestartPolicy, shown.Status.Phase = corev1.RestartPolicyNever, corev1.PodSucceeded
		}
	}), "victims of an image", 0, ""},
	{"a new leader forgets them", forgets(func(s *rollout.Status) { s.Disappeared = 0 }), "victims are deleted every two minutes", 0, ""},
	{"a new leader forgets how many were down before", forgets(func(s *rollout.Status) { s.NotReadyBefore = 0 }), "good, 1 % down for an hour", 0, ", a new leader each minute"},
	{"a new leader forgets when the rollout began", forgets(func(s *rollout.Status) { s.Started = 0 }), "a good image, and what is not Ready 3 s", 0, ", a new leader each minute"},
	{"dead nodes are not known", cluster.Mistake{NoNodes: true}, "three nodes die", 0, ""},
	{"silent nodes never time out", slides(func(p *cluster.Pod) bool { return p.Ready() && (p.Ignores || p.Stuck) }), "one silent node", 0, ", a new leader each minute"},
	{"Pods that were down never time out", slides(func(p *cluster.Pod) bool { return !p.Ready() }), "its sidecar does not start", 0, ", a new leader each minute"},
	{"a restart that does not show is free", unrecorded(func(c *cluster.Cluster, p *cluster.Pod) bool {
		return p.Ready() && (p.Restarting() || p.Runs() != p.Content)
	}), "40 good edits", 0, ""},
	{"an own write is not known before its event", cluster.Mistake{Result: func(tracker.Result) tracker.Result { return tracker.Result{} }}, "", 60, ""},
	{"workloads have no share", show(func(_ *cluster.Cluster, _ *cluster.Pod, shown *corev1.Pod) { shown.OwnerReferences = nil }), "30 apps", 0, ""},
	{"partition holds victims", cluster.Mistake{Write: func(c *cluster.Cluster, _ *cluster.Pod) bool { return c.Plan.Outdated > c.Plan.Kept }}, "a canary that", 0, ""},
	{"the leader does not wake up", cluster.Mistake{NoWake: true}, "one silent node of five", 0, ""},
	{"an evicted Pod is a deleted one", show(func(_ *cluster.Cluster, _ *cluster.Pod, shown *corev1.Pod) {
		if shown.Status.Phase == corev1.PodFailed {
			shown.Status.Phase, shown.DeletionTimestamp = corev1.PodRunning, &metav1.Time{}
		}
	}), "evicted after 20 s at 1", 0, ""},
	{"an evicted Pod that exits with 0 has done its task", show(func(_ *cluster.Cluster, _ *cluster.Pod, shown *corev1.Pod) {
		if shown.Status.Phase == corev1.PodSucceeded {
			shown.Spec.RestartPolicy = corev1.RestartPolicyNever
		}
	}), "evicted after 20 s, and exits", 0, ""},
	{"Pods on dead nodes are deleted ones", show(func(_ *cluster.Cluster, p *cluster.Pod, shown *corev1.Pod) {
		if p.Dead() && !p.Ready() {
			shown.DeletionTimestamp = &metav1.Time{}
		}
	}), "a canary of 90 %", 0, ""},
	{"Pods without a node have one", show(func(_ *cluster.Cluster, p *cluster.Pod, shown *corev1.Pod) {
		if p.Node() < 0 {
			shown.Spec.NodeName = "node-0"
		}
	}), "behind 20", 0, ""},
	{"the leader does not know what new Pods get", cluster.Mistake{Current: func(c *tracker.Current) { c.NewPods = "" }}, "new Pods get the earlier content, 20 apps deploy; breaks", 0, ""},
	{"what is refused is tried again at once", cluster.Mistake{Result: func(r tracker.Result) tracker.Result {
		r.Reason = ""
		return r
	}}, "4,000 Pods refuse", 0, ""},
	{"it is forgotten that an update was undone", unrecorded(func(c *cluster.Cluster, p *cluster.Pod) bool { return !isCurrent(c, p) }), "updates of one of 20 Pods", 0, ", a new leader each minute"},
	{"times of the future are now", show(func(c *cluster.Cluster, _ *cluster.Pod, shown *corev1.Pod) {
		now := time.Unix(int64(c.Now), 0)
		for i := range shown.Status.Conditions {
			if at := &shown.Status.Conditions[i].LastTransitionTime; at.After(now) {
				at.Time = now
			}
		}
		for _, s := range shown.Status.ContainerStatuses {
			if s.State.Running != nil && s.State.Running.StartedAt.After(now) {
				s.State.Running.StartedAt.Time = now
			}
		}
	}), "4 h ahead: the first", 0, ", many leaders"},
}

func TestPlantedMistakesAreFound(t *testing.T) {
	for _, m := range planted {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && slices.ContainsFunc(allRows(), func(r row) bool { return r.long && m.finds(r) }) {
				t.Skip("SKIP: it takes long; make test-long runs it")
			}
			if by := m.find(t); by == "" {
				t.Error("it is not found")
			} else {
				t.Log(by)
			}
		})
	}
}

// finds reports whether a row may find a mistake.
func (m *plantedMistake) finds(r row) bool { return m.row != "" && strings.HasPrefix(r.name, m.row) }

// find returns what finds a mistake; "" if nothing does.
func (m *plantedMistake) find(t testing.TB) string {
	for _, r := range allRows() {
		if !m.finds(r) {
			continue
		}
		r.scene.hurries = true
		got := r.scene.run(t, r.model, func(c *cluster.Cluster) {
			c.Mistake = m.mistake
			if change := leaders[m.leaders]; change != nil {
				change(c)
			}
		})
		if wrong := got.wrong(r.model); len(wrong) > 0 {
			return r.name + ": " + wrong[0]
		}
	}
	var f found
	for seed := range m.seeds {
		simulate(t, seed+1, m.mistake, &f)
		if wrong := f.wrong(); len(wrong) > 0 {
			return wrong[0]
		}
	}
	return ""
}

func allRows() []row {
	return slices.Concat(badImages, edits, disappearing, cures, goodImages, troubles)
}
