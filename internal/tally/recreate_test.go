package tally_test

import (
	"encoding/json"
	"fmt"
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
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

// absence is how long a new leader waits before it evicts.
const absence = int64(recreate.DefaultCreation / time.Second)

// rebuilt is a tally of a SidecarSet whose content of second 1000 differs from that of
// carrier's Pods in more than images, and which has these Pods evicted.
type rebuilt struct {
	*tally.Tally
	program *inject.Program
	now     int64
}

func newRebuilt(t *testing.T, mode string) *rebuilt {
	t.Helper()
	return newRebuiltAt(t, mode, 1000)
}

// newRebuiltAt returns a rebuilt whose leader begins at that second.
func newRebuiltAt(t *testing.T, mode string, now int64) *rebuilt {
	t.Helper()
	r := &rebuilt{Tally: newTally(), now: now}
	r.change(t, mode, "v2", nil)
	set(r.Tally)
	r.Watched(1)
	r.wait(0)
	return r
}

// change makes another content, or mode, the current one.
func (r *rebuilt) change(t *testing.T, mode, content string, edit func(*appsv1beta1.SidecarSet)) {
	t.Helper()
	object := fixtureSet("log", "side")
	object.Annotations = map[string]string{appsv1beta1.AnnotationRecreate: mode}
	object.Spec.UpdateStrategy.MaxUnavailable = new(intstr.FromInt32(2))
	object.Spec.Containers[0].Image = "v1"
	if edit != nil {
		edit(object)
	}
	r.program = compiled(t, object)
	r.program.Hash, r.program.HashWithoutImage = "hash-"+content, content
	r.SetSnapshot(match.Build([]*inject.Program{r.program}, map[string]labels.Set{"a": {}}))
	r.SetContents("log", r.program.HashWithoutImage, tally.Contents{})
}

func compiled(t *testing.T, set *appsv1beta1.SidecarSet) *inject.Program {
	t.Helper()
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	p, err := inject.Compile(object)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// current sets the time since which the content is the current one.
func (r *rebuilt) current(since int64) {
	r.SetCurrent("log", tally.Current{Program: r.program, Revision: r.program.Revision(), Since: time.Unix(since, 0), InForce: true})
}

// wait lets seconds pass.
func (r *rebuilt) wait(seconds int64) {
	r.now += seconds
	r.Settle(time.Unix(r.now, 0))
}

// lead passes the time for which a new leader waits.
func (r *rebuilt) lead() {
	r.current(1000)
	r.wait(absence)
}

// of gives a Pod a ReplicaSet as its controller, and a second of creation.
func of(p *corev1.Pod, created int64) *corev1.Pod {
	p.CreationTimestamp = metav1.Unix(created, 0)
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "rs", Controller: new(true)}}
	return p
}

func (r *rebuilt) due(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, take := range r.Due("log", 10).Updates {
		if take.Way != inplace.Recreate {
			t.Errorf("%s is to be written %v", take.Name, take.Way)
		}
		names = append(names, take.Name)
		r.NotEvicted("log", take)
		r.WithQueue("log", func(q *rollout.Queue) { q.Retry(take) })
	}
	slices.Sort(names)
	return names
}

func (r *rebuilt) wantDue(t *testing.T, what, want string) {
	t.Helper()
	if got := strings.Join(r.due(t), " "); got != want {
		t.Errorf("%s: %q are to be evicted, want %q", what, got, want)
	}
}

// evict evicts the Pods that are due, as the executor and the API server would.
func (r *rebuilt) evict(t *testing.T, pods map[string]*corev1.Pod) (names []string) {
	t.Helper()
	due := r.Due("log", 10)
	for _, take := range due.Updates {
		p := pods[take.Name]
		if !tally.MayEvict(r.program, tally.Contents{}, due.Since, take, podstate.FromPod(p), false) {
			t.Errorf("%s is given out, and must not be evicted", take.Name)
		}
		p.DeletionTimestamp = &metav1.Time{Time: time.Unix(r.now, 0)}
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"})
		r.Evicted("log", take)
		set(r.Tally, p)
		names = append(names, take.Name)
	}
	return names
}

// evicted is a tally of which the one Pod, p-0, is evicted and not gone.
func evicted(t *testing.T, mode string) (r *rebuilt, old *corev1.Pod) {
	t.Helper()
	r, old = newRebuilt(t, mode), of(carrier(0, "v1"), 500)
	r.lead()
	set(r.Tally, old)
	if got := r.evict(t, map[string]*corev1.Pod{"p-0": old}); len(got) != 1 {
		t.Fatalf("%q are evicted", got)
	}
	return r, old
}

func TestPodsThatCannotFollowAreEvictedInTheBudget(t *testing.T) {
	r := newRebuilt(t, "Outdated")
	pods := map[string]*corev1.Pod{}
	for i := range 5 {
		p := of(carrier(i, "v1"), 500)
		pods[p.Name] = p
		set(r.Tally, p)
	}
	r.wantDue(t, "before it is known since when the content is current", "")
	r.current(1000)
	r.wantDue(t, "while the leader is new", "")
	if n := r.State("log").Rollout; n.Waiting != 5 || len(n.Blocked) != 0 {
		t.Errorf("while the leader is new, the report is %+v, want 5 Pods that wait", n)
	}
	r.wait(absence)
	for round, next := 0, 5; round < 5; round++ {
		gone := r.evict(t, pods)
		if want := min(2, 5-2*round); len(gone) != max(want, 0) {
			t.Fatalf("round %d: %v are evicted, want %d", round, gone, want)
		}
		r.wantDue(t, "while replacements are missing", "")
		for _, name := range gone {
			r.Delete(podstate.FromPod(pods[name]))
			p := of(carrier(next, "v2"), r.now)
			p.Annotations[appsv1beta1.AnnotationHashWithoutImage] = strings.ReplaceAll(p.Annotations[appsv1beta1.AnnotationHashWithoutImage], "without", "v2")
			p.Status.Conditions = nil
			set(r.Tally, p)
			if used := r.State("log").Rollout.Used; used == 0 {
				t.Error("a replacement that is not ready costs nothing")
			}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			set(r.Tally, p)
			next++
		}
	}
	if n := r.State("log").Count; n.Updated != 5 || n.Matched != 5 {
		t.Errorf("the counters are %+v, want 5 updated", n.Counters)
	}
}

func TestTheRecreateModeDecidesWhichPodsAreEvicted(t *testing.T) {
	uninjected := func(created int64) *corev1.Pod {
		p := of(carrier(0, "v1"), created)
		p.Annotations = nil
		p.Spec.Containers[0].Name = "app"
		return p
	}
	change := func(p *corev1.Pod, how func(*corev1.Pod)) *corev1.Pod {
		how(p)
		return p
	}
	runsOnce := func(owner string, policy corev1.RestartPolicy) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.OwnerReferences[0].Kind, p.Spec.RestartPolicy = owner, policy }
	}
	old := func(how func(*corev1.Pod)) *corev1.Pod { return change(of(carrier(0, "v1"), 500), how) }
	tests := map[string]struct {
		mode string
		pod  *corev1.Pod
		edit func(*appsv1beta1.SidecarSet)
		want string // "evicted", the reason for which it is blocked, or nothing
	}{
		"an outdated Pod":                {"Outdated", old(func(*corev1.Pod) {}), nil, "evicted"},
		"an outdated Pod, Never":         {"Never", old(func(*corev1.Pod) {}), nil, "ImmutableFieldChanged"},
		"an outdated Pod, Uninjected":    {"Uninjected", old(func(*corev1.Pod) {}), nil, "ImmutableFieldChanged"},
		"a bare Pod":                     {"All", old(func(p *corev1.Pod) { p.OwnerReferences = nil }), nil, "NoController"},
		"a Pod of a Job":                 {"All", old(func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Job" }), nil, "ControlledByJob"},
		"a Pod of a TaskRun":             {"All", old(runsOnce("TaskRun", corev1.RestartPolicyNever)), nil, "RunToCompletion"},
		"a Pod of a Workflow":            {"All", old(runsOnce("Workflow", corev1.RestartPolicyOnFailure)), nil, "RunToCompletion"},
		"an uninjected Pod of a TaskRun": {"All", change(uninjected(500), runsOnce("TaskRun", corev1.RestartPolicyNever)), nil, ""},
		"a Pod that forbids it":          {"All", old(func(p *corev1.Pod) { p.Annotations["karpenter.sh/do-not-disrupt"] = "true" }), nil, "EvictionForbidden"},
		"a Pod of the content's second":  {"All", change(of(carrier(0, "v1"), 1000), func(*corev1.Pod) {}), nil, "evicted"},
		"a Pod newer than the content":   {"All", of(carrier(0, "v1"), 1001), nil, "ReplacementNotInjected"},
		"injection is paused":            {"All", old(func(*corev1.Pod) {}), func(s *appsv1beta1.SidecarSet) { s.Spec.InjectionStrategy.Paused = true }, "ReplacementOutdated"},
		"new Pods get a recorded revision": {"All", old(func(*corev1.Pod) {}), func(s *appsv1beta1.SidecarSet) {
			s.Spec.InjectionStrategy.Revision = &appsv1beta1.SidecarSetInjectRevision{RevisionName: new("r"), Policy: appsv1beta1.AlwaysSidecarSetInjectRevisionPolicy}
		}, "ReplacementOutdated"},
		"the strategy leaves Pods as they are": {"All", old(func(*corev1.Pod) {}), func(s *appsv1beta1.SidecarSet) {
			s.Spec.UpdateStrategy.Type = appsv1beta1.NotUpdateSidecarSetStrategyType
		}, "ImmutableFieldChanged"},
		"the rollout is paused":                 {"All", old(func(*corev1.Pod) {}), func(s *appsv1beta1.SidecarSet) { s.Spec.UpdateStrategy.Paused = true }, ""},
		"an uninjected Pod":                     {"Uninjected", uninjected(500), nil, "evicted"},
		"an uninjected Pod, All":                {"All", uninjected(500), nil, "evicted"},
		"an uninjected Pod, Outdated":           {"Outdated", uninjected(500), nil, ""},
		"an uninjected Pod that is newer":       {"All", uninjected(1001), nil, ""},
		"an uninjected bare Pod":                {"All", change(uninjected(500), func(p *corev1.Pod) { p.OwnerReferences = nil }), nil, ""},
		"uninjected, while injection is paused": {"All", uninjected(500), func(s *appsv1beta1.SidecarSet) { s.Spec.InjectionStrategy.Paused = true }, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRebuilt(t, tc.mode)
			r.change(t, tc.mode, "v2", tc.edit)
			set(r.Tally, tc.pod)
			r.lead()
			got := ""
			if len(r.due(t)) == 1 {
				got = "evicted"
			}
			for _, group := range r.State("log").Rollout.Blocked {
				got += group.Reason
			}
			if got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// Pods that the last leader evicted take places of the budget: a Pod that has not ended, and a
// replacement that is not ready.
func TestANewLeaderKeepsTheBudgetOfEvictions(t *testing.T) {
	r := newRebuilt(t, "All")
	for i := range 3 {
		set(r.Tally, of(carrier(i, "v1"), 500))
	}
	leaving := of(carrier(10, "v1"), 500)
	leaving.OwnerReferences[0].UID = "stateful"
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Unix(1000, 0)}
	leaving.Status.Conditions = append(leaving.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI"})
	set(r.Tally, leaving)
	replacement := of(carrier(11, "v2"), 1005)
	replacement.Status.Conditions = nil
	set(r.Tally, replacement)
	r.lead()
	r.wantDue(t, "with two places taken", "")
	replacement.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	set(r.Tally, replacement)
	r.wantDue(t, "with one place taken", "p-0")
	r.Replace(nil)
	for i := range 3 {
		set(r.Tally, of(carrier(i, "v1"), 500))
	}
	r.wait(absence)
	r.wantDue(t, "when it was deleted while the watch was away, and not replaced", "p-0 p-1")
}

func TestRecreationStopsWithoutReplacementsAndGoesOnWithOne(t *testing.T) {
	r := newRebuilt(t, "All")
	pods := map[string]*corev1.Pod{}
	for i := range 6 {
		p := of(carrier(i, "v1"), 500)
		pods[p.Name] = p
		set(r.Tally, p)
	}
	r.lead()
	evicted := 0
	for range 10 { // a quota refuses all replacements
		for _, name := range r.evict(t, pods) {
			evicted++
			r.Delete(podstate.FromPod(pods[name]))
		}
		r.wait(absence + 1)
	}
	if got := r.State("log").Recreation; evicted != 3 || !got.Stopped {
		t.Errorf("%d Pods are evicted, %+v, want 3", evicted, got)
	}
	if blocked := r.State("log").Rollout.Blocked; fmt.Sprint(blocked) == "[]" || blocked[0].Pods != 3 {
		t.Errorf("the Pods that are left are reported as %+v", blocked)
	}
	var next *rebuilt
	for readySince, want := range map[int64]string{1999: "", 2000: "p-0 p-1"} { // the leader begins at 2000
		next = newRebuiltAt(t, "All", 2000)
		for i := range 2 {
			set(next.Tally, of(carrier(i, "v1"), 500))
		}
		replaced := of(carrier(2, "v2"), 1500)
		replaced.Status.Conditions[0].LastTransitionTime = metav1.Unix(readySince, 0)
		set(next.Tally, replaced)
		next.SetCurrent("log", tally.Current{Program: next.program, Revision: next.program.Revision(), Since: time.Unix(1000, 0), InForce: true, Stopped: true})
		next.lead()
		next.wantDue(t, fmt.Sprintf("the leader has changed, and a replacement is ready since second %d", readySince), want)
	}
	next.change(t, "Outdated", "v2", nil)
	next.current(1000)
	next.wantDue(t, "after an edit of the annotation", "p-0 p-1")
}

// The record of a Pod may not show that the Pod cannot be updated in place: the reason is its
// Node, or a change by another writer.
func TestStuckPodsAreEvicted(t *testing.T) {
	for name, tc := range map[string]struct {
		mode string
		pod  func(*corev1.Pod)
		want inplace.Way
	}{
		"Outdated":             {"Outdated", func(*corev1.Pod) {}, inplace.Recreate},
		"All":                  {"All", func(*corev1.Pod) {}, inplace.Recreate},
		"Uninjected":           {"Uninjected", func(*corev1.Pod) {}, inplace.Images},
		"Never":                {"Never", func(*corev1.Pod) {}, inplace.Images},
		"without a controller": {"All", func(p *corev1.Pod) { p.OwnerReferences = nil }, inplace.Images},
	} {
		t.Run(name, func(t *testing.T) {
			r, p := newImages(t, tc.mode)
			tc.pod(p)
			set(r.Tally, p)
			r.lead()
			r.stick(t, inplace.NodeTooOld)
			r.wantWay(t, "stuck", tc.want)
			for stuck, want := range map[bool]bool{true: tc.want == inplace.Recreate, false: false} {
				if may := tally.MayEvict(r.program, tally.Contents{}, 1001, rollout.Take{}, podstate.FromPod(p), stuck); may != want {
					t.Errorf("stuck %v: it may be evicted: %v", stuck, may)
				}
			}
			p.Generation++
			set(r.Tally, p)
			r.wantWay(t, "after an event", tc.want)
			r.changeImages(t, "Outdated", "v2")
			r.current(1000)
			if p.OwnerReferences != nil {
				r.wantWay(t, "when the mode is Outdated", inplace.Recreate)
			}
			r.stick(t, "")
			r.wantWay(t, "not stuck any more", inplace.Images)
		})
	}
}

// The reason for which a Pod is stuck holds for one content and one Pod. It says nothing about
// the next content, or about another Pod of the same name.
func TestPodsAreStuckForOneContent(t *testing.T) {
	r, p := newImages(t, "Outdated")
	set(r.Tally, p)
	r.lead()
	before := r.program
	take := r.stick(t, inplace.ResourcesHeldElsewhere)
	r.changeImages(t, "Outdated", "v3")
	r.current(1000)
	r.wantWay(t, "with the next content", inplace.Images)
	r.SetStuck(before, take, inplace.ResourcesHeldElsewhere)
	r.wantWay(t, "when the answer is about the content before", inplace.Images)

	r.stick(t, inplace.ResourcesHeldElsewhere)
	r.wantWay(t, "stuck", inplace.Recreate)
	p.UID = "another"
	set(r.Tally, p)
	r.wantWay(t, "another Pod", inplace.Images)
	r.SetStuck(r.program, take, inplace.ResourcesHeldElsewhere)
	r.wantWay(t, "when the answer is about the Pod before", inplace.Images)
}

// newImages is a tally of a SidecarSet of which a Pod needs another image only.
func newImages(t *testing.T, mode string) (*rebuilt, *corev1.Pod) {
	t.Helper()
	r := newRebuilt(t, mode)
	r.changeImages(t, mode, "v2")
	return r, of(carrier(0, "v1"), 500)
}

func (r *rebuilt) changeImages(t *testing.T, mode, image string) {
	t.Helper()
	r.change(t, mode, image, func(s *appsv1beta1.SidecarSet) { s.Spec.Containers[0].Image = image })
	r.program.HashWithoutImage = "without"
	r.reload()
}

// stick takes the Pod, and returns it as one that is stuck for a reason.
func (r *rebuilt) stick(t *testing.T, reason inplace.Reason) rollout.Take {
	t.Helper()
	takes := r.Due("log", 10).Updates
	if len(takes) != 1 {
		t.Fatalf("%+v are due, want one", takes)
	}
	if takes[0].Way == inplace.Recreate {
		r.NotEvicted("log", takes[0])
	}
	r.WithQueue("log", func(q *rollout.Queue) { q.Hold(takes[0], reason, "") })
	r.SetStuck(r.program, takes[0], reason)
	r.WithQueue("log", func(q *rollout.Queue) { q.Release(takes[0].UID) })
	return takes[0]
}

// wantWay checks for which way the Pod is taken.
func (r *rebuilt) wantWay(t *testing.T, when string, want inplace.Way) {
	t.Helper()
	takes := r.Due("log", 10).Updates
	if len(takes) != 1 || takes[0].Way != want {
		t.Fatalf("%s: %+v is due, want one in the way %v", when, takes, want)
	}
	if want == inplace.Recreate {
		r.NotEvicted("log", takes[0])
	}
	r.WithQueue("log", func(q *rollout.Queue) { q.Retry(takes[0]) })
}

// reload makes the tally look at a program that was changed.
func (r *rebuilt) reload() {
	again := *r.program
	r.program = &again
	r.SetSnapshot(match.Build([]*inject.Program{r.program}, map[string]labels.Set{"a": {}}))
	r.SetContents("log", r.program.HashWithoutImage, tally.Contents{})
}
