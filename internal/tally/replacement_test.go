package tally_test

import (
	"slices"
	"strings"
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
	"github.com/sidecarset/operator/internal/tally"
)

// A Pod that a user has relabelled is never back, and does not end either.
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
			if used := r.State("log").Rollout.Used; used != 1 {
				t.Fatalf("%d places are used while the replacement starts, want 1", used)
			}
			how(t, r, p)
			if used := r.State("log").Rollout.Used; used != 0 {
				t.Errorf("%d places are used, want none", used)
			}
			r.wait(10 * absence)
			if got := r.State("log").Recreation; got.Failed != 0 || got.Stopped {
				t.Errorf("it counts as a failure: %+v", got)
			}
		})
	}
}

// A replacement that is being deleted will be replaced by its controller.
func TestAReplacementThatIsBeingDeletedKeepsItsPlace(t *testing.T) {
	r, old := evicted(t, "Outdated")
	r.Delete(podstate.FromPod(old))
	p := of(carrier(1, "v2"), r.now)
	p.Status.Conditions = nil
	set(r.Tally, p)
	p.DeletionTimestamp = &metav1.Time{Time: time.Unix(r.now, 0)}
	set(r.Tally, p)
	if used := r.State("log").Rollout.Used; used != 1 {
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
	if got := r.State("log").Rollout.Blocked; len(got) != 1 || got[0].Reason != string(recreate.ReplacementOutdated) {
		t.Errorf("blocked are %+v, want one for %s", got, recreate.ReplacementOutdated)
	}
}

// The tally does not visit all Pods after a change that does not affect what new Pods get.
func TestTheTallyVisitsNoPodsForChangesIrrelevantToNewPods(t *testing.T) {
	r := newRebuilt(t, "Outdated")
	const pods = 1000
	for i := range pods {
		set(r.Tally, of(carrier(i, "v1"), 500))
	}
	r.lead()
	for what, edit := range map[string]func(s *appsv1beta1.SidecarSet, serial int64){
		"its status": func(s *appsv1beta1.SidecarSet, serial int64) { s.Status.ObservedGeneration = serial },
		"its strategy": func(s *appsv1beta1.SidecarSet, serial int64) {
			s.Spec.UpdateStrategy.Partition = new(intstr.FromInt32(int32(serial)))
		},
	} {
		other := func(serial int64) *inject.Program {
			s := fixtureSet("other", "side2")
			s.Spec.Selector.MatchLabels = map[string]string{"app": "none"}
			edit(s, serial)
			return compiled(t, s)
		}
		var snapshots []*match.Snapshot
		for serial := range int64(12) {
			snapshots = append(snapshots, match.Build([]*inject.Program{r.program, other(serial)}, map[string]labels.Set{"a": {}}))
		}
		r.SetSnapshot(snapshots[0])
		if n := testing.AllocsPerRun(10, func() {
			snapshots = snapshots[1:]
			r.SetSnapshot(snapshots[0])
		}); n >= pods {
			t.Errorf("with %s, %v allocations for %d Pods", what, n, pods)
		}
	}
}

// With the policy Partial, the partition decides by chance which content new Pods get.
func TestAPartitionDecidesWhetherPodsAreEvicted(t *testing.T) {
	r := newRebuilt(t, "Outdated")
	partition := func(share string) {
		s := r.program.Set.DeepCopy()
		s.Spec.InjectionStrategy.Revision = &appsv1beta1.SidecarSetInjectRevision{
			RevisionName: new("log-1"), Policy: appsv1beta1.PartialSidecarSetInjectRevisionPolicy,
		}
		s.Spec.UpdateStrategy.Partition = new(intstr.FromString(share))
		hash, without := r.program.Hash, r.program.HashWithoutImage
		r.program = compiled(t, s)
		r.program.Hash, r.program.HashWithoutImage = hash, without
		r.SetSnapshot(match.Build([]*inject.Program{r.program}, map[string]labels.Set{"a": {}}))
	}
	partition("50%")
	set(r.Tally, of(carrier(0, "v1"), 500))
	r.lead()
	for range 2 {
		if got := r.State("log").Rollout.Blocked; len(got) != 1 || got[0].Reason != string(recreate.ReplacementOutdated) {
			t.Errorf("with 50%%, blocked are %+v, want one for %s", got, recreate.ReplacementOutdated)
		}
		partition("0%")
		r.wantDue(t, "with 0%", "p-0")
		partition("50%")
	}
}

// While the replacement of an evicted Pod starts, the content changes again: a user may have
// fixed an image that does not start. The replacement has to be updated, and holds its place
// of the budget.
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
			if used := r.State("log").Rollout.Used; used != 1 {
				t.Errorf("%d places are used, want 1", used)
			}
			r.wait(2 * int64(recreate.DefaultReady/time.Second))
			if got := r.State("log").Recreation; got.Failed != 0 || got.Stopped {
				t.Errorf("the older content counts as a failure of this one: %+v", got)
			}
			if got := r.evict(t, pods); len(got) != 1 || got[0] != "p-2" {
				t.Fatalf("%v are evicted, want p-2", got)
			}
			if used := r.State("log").Rollout.Used; used != 1 {
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

// A Pod that is available takes no place, whatever content it carries.
func TestAReplacementThatIsReadyWithAnOlderContentIsBack(t *testing.T) {
	r, old := evicted(t, "Outdated")
	starting := of(carrier(1, "v2"), r.now)
	ready := starting.Status.Conditions
	starting.Status.Conditions = nil
	set(r.Tally, starting)
	r.Delete(podstate.FromPod(old))
	r.wait(10)
	r.change(t, "Outdated", "v3", nil)
	r.current(r.now)
	take := r.Due("log", 10).Updates
	if used := r.State("log").Rollout.Used; len(take) != 1 || used != 1 {
		t.Fatalf("%+v are due, and %d places are used, want one", take, used)
	}
	starting.Status.Conditions = ready
	set(r.Tally, starting)
	r.NotEvicted("log", take[0])
	r.WithQueue("log", func(q *rollout.Queue) { q.Retry(take[0]) })
	if used := r.State("log").Rollout.Used; used != 0 {
		t.Errorf("%d places are used, want none", used)
	}
}

// A fix may rename or add a sidecar. Then the replacements that failed lack it, and are not
// Pods that carry the SidecarSet.
func TestReplacementsWithoutASidecarFollowTheNextContent(t *testing.T) {
	budget := func(s *appsv1beta1.SidecarSet) { s.Spec.UpdateStrategy.MaxUnavailable = new(intstr.FromInt32(5)) }
	for _, mode := range []string{"All", "Outdated"} {
		t.Run(mode, func(t *testing.T) {
			r := newRebuilt(t, mode)
			r.change(t, mode, "v2", budget)
			r.lead()
			pods := map[string]*corev1.Pod{}
			for i := range 6 {
				p := of(carrier(i, "v1"), 500)
				pods[p.Name] = p
				set(r.Tally, p)
			}
			evicted := r.evict(t, pods)
			if len(evicted) != 3 {
				t.Fatalf("%v are evicted, want three", evicted)
			}
			for i, name := range evicted {
				p := of(carrier(10+i, "v2"), r.now)
				p.Status.Conditions = nil
				pods[p.Name] = p
				set(r.Tally, p)
				r.Delete(podstate.FromPod(pods[name]))
			}
			r.wait(2 * int64(recreate.DefaultReady/time.Second))
			if got := r.State("log").Recreation; !got.Stopped || got.Failed != 3 {
				t.Fatalf("when none of three has started: %+v", got)
			}
			r.change(t, mode, "v3", func(s *appsv1beta1.SidecarSet) {
				budget(s)
				s.Spec.Containers[0].Name = "side2"
			})
			r.wait(10)
			r.current(r.now)
			r.wantDue(t, "with a fix that renames the sidecar", "p-10 p-11 p-12")
			if got, used := r.State("log").Recreation, r.State("log").Rollout.Used; got.Stopped || got.Failed != 0 || used != 3 {
				t.Errorf("%d places are used, want 3; %+v", used, got)
			}
		})
	}
}

// The three replacements that failed keep their places, and three more Pods are tried.
func TestAnEditOfTheRecreateModeRestartsEviction(t *testing.T) {
	r := newRebuilt(t, "Outdated")
	edit := func(s *appsv1beta1.SidecarSet) { s.Spec.UpdateStrategy.MaxUnavailable = new(intstr.FromInt32(5)) }
	r.change(t, "Outdated", "v2", edit)
	r.lead()
	pods := map[string]*corev1.Pod{}
	for i := range 9 {
		p := of(carrier(i, "v1"), 500)
		pods[p.Name] = p
		set(r.Tally, p)
	}
	for i, name := range r.evict(t, pods) {
		p := of(carrier(10+i, "v2"), r.now)
		p.Status.Conditions = nil
		set(r.Tally, p)
		r.Delete(podstate.FromPod(pods[name]))
	}
	r.wait(2 * int64(recreate.DefaultReady/time.Second))
	r.wantDue(t, "after three failures", "")
	r.change(t, "All", "v2", edit)
	r.current(1000)
	if used := r.State("log").Rollout.Used; used != 3 {
		t.Errorf("%d places are used, want 3", used)
	}
	if got := r.due(t); len(got) != 2 { // of five places
		t.Errorf("%v are due after an edit, want two", got)
	}
}

// The replacement exists before the API server has answered, and then the content changes.
func TestAReplacementThatPrecedesTheEvictionsAnswerIsUpdated(t *testing.T) {
	one := func(s *appsv1beta1.SidecarSet) { s.Spec.UpdateStrategy.MaxUnavailable = new(intstr.FromInt32(1)) }
	r := newRebuilt(t, "Outdated")
	r.change(t, "Outdated", "v2", one)
	r.lead()
	set(r.Tally, of(carrier(0, "v1"), 500))
	takes := r.Due("log", 10).Updates
	starting := of(carrier(1, "v2"), r.now)
	starting.Status.Conditions = nil
	set(r.Tally, starting)
	r.wait(10)
	r.change(t, "Outdated", "v3", one)
	r.current(r.now)
	r.Evicted("log", takes[0])
	r.Delete(podstate.FromPod(of(carrier(0, "v1"), 500)))
	r.wantDue(t, "without a further event", "p-1")
}

// A Pod of an older content lacks a sidecar that was added later. It carries the SidecarSet.
func TestPodsThatLackAnAddedSidecarAreOutdated(t *testing.T) {
	for mode, want := range map[string]string{"Outdated": "p-0", "All": "p-0 p-1", "Uninjected": "p-0 p-1", "Never": ""} {
		r := newRebuilt(t, mode)
		bare := of(carrier(1, "v1"), 500)
		bare.Annotations = nil
		for _, p := range []*corev1.Pod{of(carrier(0, "v1"), 500), bare} {
			set(r.Tally, p)
		}
		r.change(t, mode, "v2", func(s *appsv1beta1.SidecarSet) {
			s.Spec.Containers = append(s.Spec.Containers, appsv1beta1.SidecarContainer{Container: corev1.Container{Name: "added", Image: "a"}})
		})
		r.lead()
		due := r.Due("log", 10)
		var names []string
		for _, take := range due.Updates {
			names = append(names, take.Name)
			for _, p := range []*corev1.Pod{of(carrier(0, "v1"), 500), bare} {
				if p.Name == take.Name && !tally.MayEvict(r.program, tally.Contents{}, due.Since, take, podstate.FromPod(p), false) {
					t.Errorf("%s: %s is given out, and must not be evicted", mode, p.Name)
				}
			}
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: %q are evicted, want %q", mode, got, want)
		}
	}
}

// The replacement is available, and lacks the SidecarSet. It takes no place, and the next
// replacement would lack it too.
func TestAReplacementThatIsReadyAndNotInjectedTakesNoPlace(t *testing.T) {
	r, old := evicted(t, "All")
	bare := of(carrier(1, "v2"), r.now)
	bare.Annotations = nil
	set(r.Tally, bare)
	r.Delete(podstate.FromPod(old))
	if used := r.State("log").Rollout.Used; used != 0 {
		t.Errorf("%d places are used, want none", used)
	}
	r.wantDue(t, "the replacement itself", "")
}

// awayWithoutASidecar is a rollout whose only Pod replaced an evicted one, does not start, and lacks a
// sidecar that was added since.
func awayWithoutASidecar(t *testing.T) *rebuilt {
	r, old := evicted(t, "Outdated")
	starting := of(carrier(1, "v2"), r.now)
	starting.Spec.NodeName, starting.Status.Conditions = "node", nil
	set(r.Tally, starting)
	r.Delete(podstate.FromPod(old))
	r.wait(10)
	r.change(t, "Outdated", "v3", func(s *appsv1beta1.SidecarSet) {
		s.Spec.Containers[0].Name = "side2"
		s.Spec.UpdateStrategy.Paused = true
	})
	r.current(r.now)
	if used := r.State("log").Rollout.Used; used != 1 {
		t.Fatalf("%d places are used, want 1", used)
	}
	return r
}

func TestAReplacementOnALostNodeTakesNoPlace(t *testing.T) {
	r := awayWithoutASidecar(t)
	for range 2 {
		for _, record := range r.Overdue("log", 10) {
			r.Lost(record.Namespace, record.Name, record.UID)
		}
	}
	if used := r.State("log").Rollout.Used; used != 0 {
		t.Errorf("%d places are used, want none", used)
	}
}

// With the mode Uninjected, a replacement that does not start is replaced with the next
// content, although no other outdated Pod is.
func TestModeUninjectedReplacesReplacementsThatDoNotStart(t *testing.T) {
	r := newRebuilt(t, "Uninjected")
	r.lead()
	bare := of(carrier(0, "v1"), 500)
	bare.Annotations = nil
	pods := map[string]*corev1.Pod{"p-0": bare}
	set(r.Tally, bare)
	set(r.Tally, of(carrier(5, "v1"), 500))
	if got := r.evict(t, pods); len(got) != 1 {
		t.Fatalf("%v are evicted, want one", got)
	}
	starting := of(carrier(1, "v2"), r.now)
	starting.Status.Conditions = nil
	pods["p-1"] = starting
	set(r.Tally, starting)
	r.Delete(podstate.FromPod(bare))
	r.wait(10)
	r.change(t, "Uninjected", "v3", nil)
	r.current(r.now)
	if got := r.evict(t, pods); len(got) != 1 || got[0] != "p-1" {
		t.Errorf("%v are evicted, want p-1", got)
	}
}

// A replacement that does not start when the content changes is in flight. The kubelet's
// report about it makes the rollout stall early.
func TestAReplacementThatDoesNotStartIsFailing(t *testing.T) {
	r := newRebuilt(t, "Outdated")
	r.lead()
	pods := map[string]*corev1.Pod{"p-0": of(carrier(0, "v1"), 500)}
	set(r.Tally, pods["p-0"])
	r.evict(t, pods)
	starting := of(carrier(1, "v2"), r.now)
	ready := starting.Status.DeepCopy()
	starting.Status.Conditions = nil
	starting.Status.ContainerStatuses[0].Ready = false
	starting.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
	set(r.Tally, starting)
	r.Delete(podstate.FromPod(pods["p-0"]))
	if got := r.State("log").Groups.Failing; len(got) != 0 {
		t.Errorf("failing are %+v before the content changes", got)
	}
	r.wait(10)
	r.change(t, "Outdated", "v3", func(s *appsv1beta1.SidecarSet) { s.Spec.UpdateStrategy.Paused = true })
	r.current(r.now)
	if got := r.State("log").Groups.Failing; len(got) != 1 || got[0].Pods != 1 || got[0].Reason != "ImagePullBackOff" {
		t.Errorf("failing are %+v, want the replacement", got)
	}
	starting.Status = *ready
	set(r.Tally, starting)
	if got := r.State("log").Groups.Failing; len(got) != 0 {
		t.Errorf("failing are %+v when it is ready", got)
	}
}

// A replacement that failed is being deleted when the content changes. It is away because of
// the operator until it is replaced.
func TestAFailedReplacementThatIsBeingDeletedKeepsItsPlace(t *testing.T) {
	r := newRebuilt(t, "Outdated")
	r.lead()
	pods := map[string]*corev1.Pod{"p-0": of(carrier(0, "v1"), 500)}
	set(r.Tally, pods["p-0"])
	r.evict(t, pods)
	failing := of(carrier(1, "v2"), r.now)
	failing.Status.Conditions = nil
	set(r.Tally, failing)
	r.Delete(podstate.FromPod(pods["p-0"]))
	r.wait(2 * int64(recreate.DefaultReady/time.Second))
	failing.DeletionTimestamp = &metav1.Time{Time: time.Unix(r.now, 0)}
	set(r.Tally, failing)
	r.wantUsed(t, "when it has failed", 1)
	r.change(t, "Outdated", "v3", nil)
	r.current(r.now)
	r.wantUsed(t, "with another content", 1)
	r.Delete(podstate.FromPod(failing))
	r.wantUsed(t, "when it is gone", 1)
	set(r.Tally, of(carrier(2, "v3"), r.now+1))
	r.wantUsed(t, "when its replacement is ready", 0)
	if got := r.State("log").Recreation; got.Stopped || got.Failed != 0 {
		t.Errorf("%+v, want no failure of this content", got)
	}
}
