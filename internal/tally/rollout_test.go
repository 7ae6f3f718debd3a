package tally_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

// cluster has real Pods with one SidecarSet, and a leader's Tally that watches them.
type cluster struct {
	*testing.T
	*tally.Tally
	program *inject.Program
	pods    map[string]*corev1.Pod
	version int
	now     time.Time
}

func logging(image string) *fixtures.SidecarSetBuilder {
	return fixtures.SidecarSet("logging").Select("app", "web").Container("log", image).Spec("updateStrategy", map[string]any{"type": "RollingUpdate"})
}

func newCluster(t *testing.T, set *fixtures.SidecarSetBuilder, pods int) *cluster {
	c := &cluster{T: t, Tally: newTally(), pods: map[string]*corev1.Pod{}, version: 100, now: time.Unix(1_800_000_000, 0)}
	c.Settle(c.now)
	c.apply(set)
	for i := range pods {
		c.create(fmt.Sprint("p", i))
	}
	return c
}

// apply stores the SidecarSet, records its content and puts it in force.
func (c *cluster) apply(set *fixtures.SidecarSetBuilder) {
	c.program = fixtures.Program(c.T, set.Map())
	c.SetSnapshot(match.Build([]*inject.Program{c.program}, map[string]labels.Set{}))
	if !c.SetCurrent("logging", tally.Current{Program: c.program, Revision: c.program.Revision(), Since: c.now, InForce: true}) {
		c.Fatal("the content is not taken over")
	}
}

// create injects a Pod, and has its kubelet start it.
func (c *cluster) create(name string) {
	pod := fixtures.Pod(name).Namespace("shop").Label("app", "web").Container("web", "web:1").Obj()
	pod["metadata"].(map[string]any)["uid"] = name + "-" + strconv.Itoa(c.version)
	plan, err := inject.Compute(inject.Input{Pod: fixtures.View(c.T, pod), Candidates: []inject.Candidate{{Current: c.program}}, Now: c.now})
	if err != nil {
		c.Fatal(err)
	}
	text, _ := json.Marshal(fixtures.Apply(c.T, plan, pod))
	p := &corev1.Pod{}
	if err := json.Unmarshal(text, p); err != nil {
		c.Fatal(err)
	}
	p.Generation, p.CreationTimestamp = 1, metav1.NewTime(c.now)
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "web", Controller: new(true)}}
	p.Spec.NodeName = "node"
	c.pods[name] = p
	c.kubelet(name, true)
}

// kubelet runs what the Pod's spec says; the Pod is Ready or not.
func (c *cluster) kubelet(name string, ready bool) {
	p := c.pods[name]
	p.Status.Phase, p.Status.ObservedGeneration = corev1.PodRunning, p.Generation
	p.Status.ContainerStatuses = nil
	for _, container := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, ImageID: "x@sha256:" + container.Image, Ready: ready, Started: new(true),
			ContainerID: "containerd://" + container.Image, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.now)}},
		})
	}
	is := corev1.ConditionFalse
	if ready {
		is = corev1.ConditionTrue
	}
	if len(p.Status.Conditions) == 0 || p.Status.Conditions[0].Status != is {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: is, LastTransitionTime: metav1.NewTime(c.now)}}
	}
	c.show(name)
}

func (c *cluster) show(name string) {
	c.version++
	c.pods[name].ResourceVersion = strconv.Itoa(c.version)
	c.Set(podstate.FromPod(c.pods[name]))
	c.Watched(uint64(c.version))
}

func (c *cluster) delete(name string) {
	c.Delete(podstate.FromPod(c.pods[name]))
	delete(c.pods, name)
}

func (c *cluster) wait(d time.Duration) {
	for range int(d / time.Second) {
		c.now = c.now.Add(time.Second)
		c.Settle(c.now)
		c.State("logging") // looks at the Pods, as a pass does
	}
}

// roll writes the Pods that are due, and returns their names.
func (c *cluster) roll() (names []string) {
	due := c.Due("logging", 64)
	for _, take := range due.Updates {
		names = append(names, take.Name)
		pod := c.pods[take.Name]
		if take.Way == inplace.Recreate {
			c.Return("logging", take, rollout.Result{Kind: rollout.Evicted})
			continue
		}
		next, err := inplace.UpdateInPlace(inplace.UpdateInput{Pod: pod, Program: due.Program, Content: due.Content, Now: c.now})
		if err != nil || next.Patch == nil {
			c.Fatalf("Pod %s: %+v %v", take.Name, next, err)
		}
		before, _ := json.Marshal(pod)
		after, err := strategicpatch.StrategicMergePatch(before, next.Patch, &corev1.Pod{})
		if err != nil {
			c.Fatal(err)
		}
		changed := &corev1.Pod{}
		if err := json.Unmarshal(after, changed); err != nil {
			c.Fatal(err)
		}
		changed.Generation++
		c.pods[take.Name] = changed
		c.Return("logging", take, rollout.Result{Kind: rollout.Written, Version: uint64(c.version + 1)})
		c.show(take.Name)
	}
	slices.Sort(names)
	return names
}

func (c *cluster) expect(what string, want int) []string {
	c.Helper()
	names := c.roll()
	if len(names) != want {
		c.Fatalf("%s: %v are written, want %d; %+v", what, names, want, c.State("logging").Rollout)
	}
	return names
}

func TestARolloutBeginsWithOnePodAndDoubles(t *testing.T) {
	c := newCluster(t, logging("log:1").Spec("updateStrategy", map[string]any{"type": "RollingUpdate", "maxUnavailable": "100%"}), 8)
	c.expect("nothing is outdated", 0)
	c.apply(logging("log:2").Spec("updateStrategy", map[string]any{"type": "RollingUpdate", "maxUnavailable": "100%"}))
	for _, want := range []int{1, 1, 2, 4} {
		names := c.expect("at the beginning of a batch", want)
		c.expect("before the kubelet has restarted the sidecars", 0)
		c.wait(3 * time.Second)
		for _, name := range names {
			c.kubelet(name, true)
		}
		c.wait(31 * time.Second)
	}
	if s := c.State("logging"); s.UpdatedReady != 8 || s.Rollout.Used != 0 || s.Rollout.Proven != 8 || s.Rollout.NotReadyBefore != 0 {
		t.Errorf("the state is %+v", s)
	}
}

// A Pod that breaks after its sidecar has started stops the rollout, also if it is deleted. A
// corrected content goes to it at once.
func TestABrokenPodKeepsItsPlace(t *testing.T) {
	c := newCluster(t, logging("log:1"), 4)
	c.apply(logging("log:2"))
	victim := c.expect("the first Pod", 1)[0]
	c.kubelet(victim, true)
	c.wait(20 * time.Second)
	c.kubelet(victim, false)
	c.wait(time.Hour)
	c.expect("an hour after it broke", 0)
	state := c.State("logging").Rollout
	if state.Used != 1 || state.Failed != 1 || len(state.Counting) != 1 || state.Counting[0].First[0] != "shop/"+victim {
		t.Errorf("the report is %+v", state)
	}
	c.delete(victim)
	c.create(victim)
	c.kubelet(victim, false)
	c.wait(time.Hour)
	c.expect("an hour after it was deleted", 0)
	if got := c.State("logging").Rollout.Counting; len(got) != 1 || got[0].Reason != appsv1beta1.ReasonReplacementNotReady {
		t.Errorf("Pods that count: %+v", got)
	}
	c.apply(logging("log:3"))
	if names := c.expect("the corrected content", 1); names[0] == "" {
		t.Error("no Pod is written")
	}
}

func TestNoPodIsWrittenBeforeItsContentIsRecorded(t *testing.T) {
	c := newCluster(t, logging("log:1"), 2)
	c.SetSnapshot(match.Build([]*inject.Program{fixtures.Program(t, logging("log:2").Map())}, map[string]labels.Set{}))
	if due := c.Due("logging", 64); len(due.Updates) > 0 {
		t.Errorf("%v are due", due.Updates)
	}
}

// A Pod without a sidecar that was added since is outdated, and only a new Pod can have it.
func TestAnAddedSidecarBlocksPods(t *testing.T) {
	c := newCluster(t, logging("log:1"), 3)
	more := logging("log:2").Container("extra", "extra:1")
	c.apply(more)
	if !c.SetDifferences("logging", c.program.HashWithoutImage, inplace.Differences{}) {
		t.Fatal("the differences are not taken over")
	}
	c.expect("with a sidecar that no Pod has", 0)
	s := c.State("logging")
	if s.Matched != 3 || s.Updated != 0 || s.Uninjected != 0 || len(s.Rollout.Blocked) != 1 || s.Rollout.Blocked[0].Reason != string(inplace.ImmutableFieldChanged) || !s.Differs {
		t.Errorf("the state is %+v", s)
	}
	c.apply(more.Annotation(appsv1beta1.AnnotationRecreate, appsv1beta1.RecreateOutdated))
	c.wait(40 * time.Second)
	c.expect("once Pods may be recreated", 1)
}

func TestPodsThatWereMissedAreRecreated(t *testing.T) {
	c := newCluster(t, logging("log:1"), 0)
	c.wait(time.Minute)
	c.create("a")
	c.create("b")
	for name := range maps.Clone(c.pods) {
		delete(c.pods[name].Annotations, appsv1beta1.AnnotationInjectedList)
		c.show(name)
	}
	c.wait(time.Minute)
	c.apply(logging("log:1").Annotation(appsv1beta1.AnnotationRecreate, appsv1beta1.RecreateUninjected))
	c.wait(time.Minute)
	c.expect("Pods without the SidecarSet", 1)
	if s := c.State("logging"); s.Uninjected != 2 || s.Rollout.Outdated != 2 {
		t.Errorf("the state is %+v", s)
	}
	c.apply(logging("log:1").Spec("updateStrategy", map[string]any{"type": "NotUpdate"}))
	if s := c.State("logging"); s.Rollout.Limit != rollout.NotUpdate || s.Rollout.Outdated != 0 {
		t.Errorf("the state is %+v", s)
	}
}

// A Pod whose Node is gone does not count.
func TestPodsOnLostNodesDoNotCount(t *testing.T) {
	c := newCluster(t, logging("log:1"), 4)
	c.apply(logging("log:2"))
	victim := c.expect("the first Pod", 1)[0]
	c.kubelet(victim, false)
	c.wait(time.Minute)
	overdue := c.Overdue("logging", 10)
	if len(overdue) != 1 || overdue[0].Name != victim {
		t.Fatalf("overdue are %v", overdue)
	}
	c.Lost(overdue[0].Namespace, victim, overdue[0].UID)
	if next := c.expect("once its Node is lost", 1)[0]; strings.EqualFold(next, victim) {
		t.Errorf("Pod %s is written again", next)
	}
}
