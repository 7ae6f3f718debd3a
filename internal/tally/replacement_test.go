package tally_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
)

// A Pod that a user has relabelled does not come back, and does not go either.
func TestAReplacementThatIsNotSelectedAnyMoreTakesNoPlace(t *testing.T) {
	leave := map[string]func(t *testing.T, r *rebuilt, p *corev1.Pod){
		"the Pod has other labels": func(_ *testing.T, r *rebuilt, p *corev1.Pod) {
			p.Labels = map[string]string{"app": "quarantine"}
			set(r.Tally, p)
		},
		"the SidecarSet selects others": func(t *testing.T, r *rebuilt, _ *corev1.Pod) {
			r.change(t, "Outdated", "v2", func(s *appsv1beta1.SidecarSet) { s.Spec.Selector.MatchLabels["app"] = "api" })
		},
		"the Namespace has other labels": func(_ *testing.T, r *rebuilt, _ *corev1.Pod) {
			r.SetSnapshot(match.Build([]*inject.Program{r.program}, map[string]labels.Set{"a": {"tier": "x"}}))
		},
	}
	for name, how := range leave {
		t.Run(name, func(t *testing.T) {
			r := newRebuilt(t, "Outdated")
			r.change(t, "Outdated", "v2", func(s *appsv1beta1.SidecarSet) {
				s.Spec.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpDoesNotExist}}}
			})
			r.lead()
			pods := map[string]*corev1.Pod{"p-0": of(carrier(0, "v1"), 500)}
			set(r.Tally, pods["p-0"])
			if got := r.evict(t, pods); len(got) != 1 {
				t.Fatalf("%v are evicted, want one", got)
			}
			p := of(carrier(1, "v2"), r.now)
			p.Status.Conditions = nil
			set(r.Tally, p)
			r.Delete(podstate.FromPod(pods["p-0"]))
			if used := r.Rollout("log").Used; used != 1 {
				t.Fatalf("%d places are used while the replacement starts, want 1", used)
			}
			how(t, r, p)
			if used := r.Rollout("log").Used; used != 0 {
				t.Errorf("%d places are used, want none", used)
			}
			r.wait(10 * absence)
			if got := r.Recreation("log"); got.Failed != 0 || got.Stopped {
				t.Errorf("it counts as a failure: %+v", got)
			}
		})
	}
}

// A replacement that is being deleted is one that the controller replaces.
func TestAReplacementThatIsBeingDeletedKeepsItsPlace(t *testing.T) {
	r := newRebuilt(t, "Outdated")
	r.lead()
	pods := map[string]*corev1.Pod{"p-0": of(carrier(0, "v1"), 500)}
	set(r.Tally, pods["p-0"])
	r.evict(t, pods)
	r.Delete(podstate.FromPod(pods["p-0"]))
	p := of(carrier(1, "v2"), r.now)
	p.Status.Conditions = nil
	set(r.Tally, p)
	p.DeletionTimestamp = &metav1.Time{Time: time.Unix(r.now, 0)}
	set(r.Tally, p)
	if used := r.Rollout("log").Used; used != 1 {
		t.Errorf("%d places are used, want 1", used)
	}
}

// Whether a new Pod gets the content depends on other SidecarSets, too, such as a canary
// that leaves running Pods alone.
func TestAnotherSidecarSetDecidesWhetherPodsAreEvicted(t *testing.T) {
	r := newRebuilt(t, "Outdated")
	set(r.Tally, of(carrier(0, "v1"), 500))
	r.lead()
	canary := func(paused bool) {
		s := fixtureSet("canary", "side")
		s.Annotations = map[string]string{appsv1beta1.AnnotationCanary: "true", appsv1beta1.AnnotationBase: "log"}
		s.Spec.UpdateStrategy.Type = appsv1beta1.NotUpdateSidecarSetStrategyType
		s.Spec.InjectionStrategy.Paused = paused
		r.SetSnapshot(match.Build([]*inject.Program{r.program, compiled(t, s)}, map[string]labels.Set{"a": {}}))
	}
	canary(true)
	r.wantDue(t, "while the canary injects nothing", "p-0")
	canary(false)
	r.wantDue(t, "when the canary is injected instead", "")
	if got := r.Rollout("log").Blocked; len(got) != 1 || got[0].Reason != string(recreate.ReplacementOutdated) {
		t.Errorf("blocked are %+v, want one for %s", got, recreate.ReplacementOutdated)
	}
}

// A list of many Pods takes long, and is about the time at which it began.
func TestANewLeaderWaitsFromItsFirstList(t *testing.T) {
	r := &rebuilt{Tally: newTally(), now: 1000}
	r.change(t, "Outdated", "v2", nil)
	r.current(1000)
	r.wait(0)
	r.wait(2 * absence)
	set(r.Tally, of(carrier(0, "v1"), 500))
	r.Watched(1)
	r.wait(1)
	r.wantDue(t, "just after the list", "")
	r.wait(absence)
	r.wantDue(t, "later", "p-0")
}

// While the replacement of an evicted Pod starts, the content changes again: a fix, say, of
// one that does not start. The replacement has to follow, and has its place of the budget.
func TestAReplacementFollowsTheNextContent(t *testing.T) {
	one := func(s *appsv1beta1.SidecarSet) { s.Spec.UpdateStrategy.MaxUnavailable = new(intstr.FromInt32(1)) }
	for name, edit := range map[string]func(*appsv1beta1.SidecarSet){
		"plain": one,
		"with a first batch": func(s *appsv1beta1.SidecarSet) {
			one(s)
			s.Annotations[appsv1beta1.AnnotationFirstBatch] = "1"
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRebuilt(t, "Outdated")
			r.change(t, "Outdated", "v2", edit)
			r.lead()
			pods := map[string]*corev1.Pod{"p-0": of(carrier(0, "v1"), 500), "p-1": of(carrier(1, "v1"), 500)}
			set(r.Tally, pods["p-0"])
			set(r.Tally, pods["p-1"])
			first := r.evict(t, pods)
			if len(first) != 1 {
				t.Fatalf("%v are evicted, want one", first)
			}
			starting := of(carrier(2, "v2"), r.now)
			starting.Status.Conditions = nil
			pods["p-2"] = starting
			set(r.Tally, starting)
			r.Delete(podstate.FromPod(pods[first[0]]))
			r.wantDue(t, "while it starts", "")

			r.wait(10)
			r.change(t, "Outdated", "v3", edit)
			r.current(r.now)
			r.wantDue(t, "with another content", "p-2")
			r.wantDue(t, "after its eviction was refused", "p-2")
			if used := r.Rollout("log").Used; used != 1 {
				t.Errorf("%d places are used, want 1", used)
			}
			r.wait(2 * int64(recreate.DefaultReady/time.Second))
			if got := r.Recreation("log"); got.Failed != 0 || got.Stopped {
				t.Errorf("the older content counts as a failure of this one: %+v", got)
			}
			if got := r.evict(t, pods); len(got) != 1 || got[0] != "p-2" {
				t.Fatalf("%v are evicted, want p-2", got)
			}
			if used := r.Rollout("log").Used; used != 1 {
				t.Errorf("%d places are used after the eviction, want 1", used)
			}
			set(r.Tally, of(carrier(3, "v3"), r.now))
			r.Delete(podstate.FromPod(starting))
			other := "p-0"
			if first[0] == other {
				other = "p-1"
			}
			r.wantDue(t, "when the next one is ready", other)
		})
	}
}

// A Pod that is available takes no place, whatever it carries.
func TestAReplacementThatIsReadyWithAnOlderContentIsBack(t *testing.T) {
	r := newRebuilt(t, "Outdated")
	r.lead()
	pods := map[string]*corev1.Pod{"p-0": of(carrier(0, "v1"), 500)}
	set(r.Tally, pods["p-0"])
	r.evict(t, pods)
	starting := of(carrier(1, "v2"), r.now)
	ready := starting.Status.Conditions
	starting.Status.Conditions = nil
	set(r.Tally, starting)
	r.Delete(podstate.FromPod(pods["p-0"]))
	r.wait(10)
	r.change(t, "Outdated", "v3", nil)
	r.current(r.now)
	take := r.Due("log", 10).Updates
	if len(take) != 1 || take[0].Charged {
		t.Fatalf("%+v are due, want one without a charge", take)
	}
	starting.Status.Conditions = ready
	set(r.Tally, starting)
	r.NotEvicted("log", take[0])
	r.Tend("log", func(q *rollout.Queue) { q.Retry(take[0]) })
	if used := r.Rollout("log").Used; used != 0 {
		t.Errorf("%d places are used, want none", used)
	}
	if take := r.Due("log", 10).Updates; len(take) != 1 || !take[0].Charged {
		t.Errorf("%+v are due, want one that takes a place", take)
	}
}
