package tally_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

// half has four proven Pods, two that are updating, and four that are outdated.
func half(t *testing.T) (c *cluster, updating []string) {
	c = newCluster(t, logging("log:1"), 10)
	c.apply(logging("log:2"))
	for _, most := range []int{1, 1, 2} {
		for _, name := range c.roll(most) {
			c.wait(3 * time.Second)
			c.kubelet(name, true)
		}
		c.wait(time.Minute)
	}
	return c, c.roll(2)
}

// A charged Pod that disappears keeps its place for ten minutes. That is stored before the next
// available Pod is written.
func TestAChargedPodThatDisappears(t *testing.T) {
	remove := func(c *cluster, name string) {
		c.Delete(podstate.FromPod(c.pods[name]))
		delete(c.pods, name)
	}
	terminate := func(c *cluster, name string) {
		c.pods[name].DeletionTimestamp = new(metav1.NewTime(c.now))
		c.show(name)
	}
	phase := func(phase corev1.PodPhase) func(*cluster, string) {
		return func(c *cluster, name string) {
			c.pods[name].Status.Phase = phase
			c.show(name)
		}
	}
	for name, tc := range map[string]struct {
		do   func(c *cluster, name string)
		want int
	}{
		"it is being deleted":         {terminate, 1},
		"it is deleted at once":       {remove, 1},
		"first the one, then both":    {func(c *cluster, name string) { terminate(c, name); c.show(name); remove(c, name) }, 1},
		"it fails":                    {phase(corev1.PodFailed), 1},
		"it fails, and is deleted":    {func(c *cluster, name string) { phase(corev1.PodFailed)(c, name); remove(c, name) }, 1},
		"it succeeds":                 {phase(corev1.PodSucceeded), 0},
		"a new list does not have it": {func(c *cluster, name string) { delete(c.pods, name); c.list(); c.list() }, 1},
		"another has its name":        {func(c *cluster, name string) { c.create(name) }, 1},
		"it is not selected":          {func(c *cluster, name string) { c.pods[name].Labels = nil; c.show(name); remove(c, name) }, 0},
		"its node is dead": {func(c *cluster, name string) {
			c.ready(name, false)
			c.SetNodes(map[podstate.Name]inplace.Node{podstate.MakeName("node"): {NotReady: true}})
			remove(c, name)
			c.SetNodes(map[podstate.Name]inplace.Node{podstate.MakeName("node"): {}})
		}, 0},
		"its update was not charged": {func(c *cluster, name string) {
			for other, p := range c.pods { // one that is proven
				if p.Annotations[appsv1beta1.AnnotationInPlace] != "" && other != name {
					if s := p.Status.ObservedGeneration; s == p.Generation {
						remove(c, other)
						return
					}
				}
			}
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c, updating := half(t)
			tc.do(c, updating[0])
			plan := c.plan()
			if got := plan.Status.Disappeared; got != tc.want {
				t.Fatalf("%d Pods have disappeared, want %d", got, tc.want)
			}
			if tc.want == 0 {
				return
			}
			if until := c.now.Add(10 * time.Minute).Unix(); plan.Status.DisappearedUntil != until || plan.Charged != 2 || plan.Rule != rollout.Storing {
				t.Errorf("the plan is %+v, want a place until %d", plan, until)
			}
			c.none("before it is stored")
			c.DueChanged(func(string) {})
			c.reconcile()
			woken := false
			c.DueChanged(func(string) { woken = true })
			if n := len(c.tasks(tally.Update, 64)); !woken || n != 2 { // beside 4 proven Pods, one that is updating and one that is gone
				t.Errorf("woken is %v, and %d are due once it is stored, want 2", woken, n)
			}
		})
	}
}

// A Pod with the content before disappears after an edit, and before the operator has recorded the
// next content. It keeps its place.
func TestAPodThatDisappearsRightAfterAnEdit(t *testing.T) {
	c, updating := half(t)
	c.program, c.stored = fixtures.Program(t, logging("log:3").Map()), rollout.Begun
	c.SetSnapshot(match.Build([]*inject.Program{c.program}, map[string]labels.Set{}))
	c.Delete(podstate.FromPod(c.pods[updating[0]]))
	plan := c.plan()
	if until := c.now.Add(10 * time.Minute).Unix(); plan.Status != (rollout.Status{NotReadyBefore: rollout.Begun.NotReadyBefore, Disappeared: 1, DisappearedUntil: until}) || plan.Charged != 2 {
		t.Errorf("the plan is %+v, want a place until %d", plan, until)
	}
	c.none("before it is stored")
}

// A place ends after ten minutes, whether or not it was stored in time, and its end is no reason to
// wait.
func TestAPlaceEnds(t *testing.T) {
	for _, stored := range []bool{true, false} {
		c := newCluster(t, strategy(logging("log:1"), 1), 3)
		c.apply(strategy(logging("log:2"), 1))
		name := c.roll(1)[0]
		c.Delete(podstate.FromPod(c.pods[name]))
		if stored {
			c.reconcile()
		}
		if again := c.Due("logging", 64).Again; !again.Equal(c.now.Add(10 * time.Minute)) {
			t.Errorf("it looks again at %v", again)
		}
		c.wait(10*time.Minute - time.Second)
		c.none("a place is kept")
		c.wait(time.Second)
		if stored {
			c.reconcile()
		}
		c.one(tally.Update)
	}
}

// How many Pods were down before is known once the first Pod is written. A plan for the status
// begins nothing.
func TestAPlanForTheStatusBeginsNothing(t *testing.T) {
	c := newCluster(t, logging("log:1"), 4)
	c.ready("p3", false)
	c.apply(logging("log:2"))
	for range 2 {
		if plan := c.plan(); plan.Write != nil || plan.Reset != nil || plan.Status != rollout.Begun {
			t.Errorf("the plan is %+v", plan)
		}
	}
	c.roll(64)
	if plan := c.plan(); plan.Status.NotReadyBefore != 1 {
		t.Errorf("after the first write, the plan is %+v", plan)
	}
	c.ready("p3", true)
	c.apply(strategy(logging("log:2"), "50%"))
	if plan := c.plan(); plan.Status.NotReadyBefore != 1 || plan.Numbers.Budget != 2 {
		t.Errorf("with another strategy, the plan is %+v", plan)
	}
	c.apply(logging("log:3"))
	if plan := c.plan(); plan.Status != rollout.Begun {
		t.Errorf("with another content, the plan is %+v", plan)
	}
}

func TestNoPodIsWrittenBeforeItsContentIsRecorded(t *testing.T) {
	c := newCluster(t, logging("log:1"), 2)
	c.Unrecorded(func(string) {})
	old := c.program
	c.program = fixtures.Program(t, logging("log:2").Map())
	c.SetSnapshot(match.Build([]*inject.Program{c.program}, map[string]labels.Set{}))
	c.none("nothing records it")
	if _, ok := c.SetCurrent("logging", tally.Current{Program: old, Revision: old.Revision(), Since: c.now}); ok {
		t.Error("the state of an older content is taken over")
	}
	if _, ok := c.SetCurrent("logging", tally.Current{Program: c.program, Revision: "another", Since: c.now}); ok {
		t.Error("a revision of another name is taken over")
	}
	c.none("it is not recorded under its name")
	announced := 0
	c.Unrecorded(func(string) { announced++ })
	c.plan()
	c.one(tally.Update)
	c.Unrecorded(func(string) { announced++ })
	if announced != 1 {
		t.Errorf("it is announced %d times", announced)
	}
}

// Pods on a node that is not ready, or gone, are in no counter as long as they are not Ready.
func TestPodsOnDeadNodes(t *testing.T) {
	c := newCluster(t, strategy(logging("log:1"), 1), 4)
	c.apply(strategy(logging("log:2"), 1))
	victim := c.roll(1)[0]
	node := podstate.MakeName("node")
	for _, step := range []struct {
		name  string
		do    func()
		total int
	}{
		{"no Node is known", func() { c.ready(victim, false); c.SetNode(node, &inplace.Node{NotReady: true}) }, 4},
		{"the Node is gone", func() { c.SetNodes(map[podstate.Name]inplace.Node{}) }, 3},
		{"the Pod is Ready", func() { c.ready(victim, true) }, 4},
		{"and not any more", func() { c.ready(victim, false) }, 3},
		{"the Node is ready", func() { c.SetNode(node, &inplace.Node{}) }, 4},
		{"the Node is not ready", func() { c.SetNode(node, &inplace.Node{NotReady: true}) }, 3},
		{"another Node is", func() { c.SetNode(podstate.MakeName("other"), &inplace.Node{}) }, 3},
		{"it is ready again", func() { c.SetNode(node, &inplace.Node{}) }, 4},
		{"it is deleted", func() { c.SetNode(node, nil) }, 3},
	} {
		c.Changed(func(string) {})
		step.do()
		told := false
		c.Changed(func(string) { told = true })
		if plan := c.plan(); plan.Total != step.total || plan.Charged != step.total-3 || !told && step.name != "no Node is known" {
			t.Errorf("%s: %d Pods, %d of them charged, want %d; told: %v", step.name, plan.Total, plan.Charged, step.total, told)
		}
	}
	if next := c.one(tally.Update).Record.Name; next == victim {
		t.Errorf("Pod %s is written again", next)
	}
}

func TestAKubeletThatIsTooOldBlocksItsPods(t *testing.T) {
	native := func(image string) *fixtures.SidecarSetBuilder {
		return strategy(fixtures.SidecarSet("logging").Select("app", "web").Native("log", image), 1)
	}
	c := newCluster(t, native("log:1"), 1)
	node := podstate.MakeName("node")
	c.SetNodes(map[podstate.Name]inplace.Node{node: {TooOld: true}})
	c.apply(native("log:2"))
	c.tasks(tally.Label, 64)
	if got := c.blocked(); got != "NodeTooOld" {
		t.Errorf("blocked for %q", got)
	}
	c.SetNode(node, &inplace.Node{})
	if got := c.blocked(); got != "" || c.plan().Outdated != 1 {
		t.Errorf("when the node has been upgraded, blocked for %q", got)
	}
}

// Conditions are written when nothing else is due, and once per event.
func TestLabels(t *testing.T) {
	c := newCluster(t, logging("log:1"), 1)
	c.none("a Pod that was injected with the content")
	c.apply(logging("log:2"))
	c.roll(64)
	c.none("its update is under way")
	c.wait(3 * time.Second)
	c.kubelet("p0", true)
	task := c.one(tally.Label)
	if due := c.Due("logging", 64); len(due.Tasks) > 0 {
		t.Errorf("under way, %d are due", len(due.Tasks))
	}
	c.Return(task, tally.Result{Reason: inplace.Refused})
	for range 29 {
		c.wait(time.Second)
		if due := c.Due("logging", 64); len(due.Tasks) > 0 || due.Again.IsZero() || due.Again.After(c.now.Add(30*time.Second)) {
			t.Fatalf("a condition that was refused is due again: %+v", due)
		}
	}
	c.wait(time.Second)
	task = c.one(tally.Label)
	c.Return(task, tally.Result{Version: c.stamp("p0")})
	for _, show := range []bool{false, true} { // its event comes, without the condition
		if show {
			c.show("p0")
		}
		if due := c.Due("logging", 64); len(due.Tasks) > 0 {
			t.Errorf("event %v: %d are due before another event", show, len(due.Tasks))
		}
	}
	c.ready("p0", true)
	c.one(tally.Label)
}

// hot is a Pod whose hot upgrade can be ended.
func hot(t *testing.T) *cluster {
	set := func(image string) *fixtures.SidecarSetBuilder {
		return strategy(fixtures.SidecarSet("logging").Select("app", "web").
			Container("log", image).With("upgradeStrategy", map[string]any{"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:1"}), 1)
	}
	c := newCluster(t, set("log:1"), 2)
	c.apply(set("log:2"))
	name := c.roll(64)[0]
	c.wait(3 * time.Second)
	c.kubelet(name, true)
	return c
}

// The end of a hot upgrade is a write like any other: it is sent once, and the Pod rests if it is
// refused or undone. Until then the Pod is updating.
func TestResets(t *testing.T) {
	c := hot(t)
	task := c.one(tally.Reset)
	name := task.Record.Name
	c.kubelet(name, true)
	c.none("it is under way, whatever events come")
	c.Return(task, tally.Result{Reason: inplace.Refused})
	c.wait(29 * time.Second)
	c.none("it was refused")
	if again := c.Due("logging", 64).Again; !again.Equal(c.now.Add(time.Second)) {
		t.Errorf("it looks again at %v", again)
	}
	c.wait(time.Second)
	task = c.one(tally.Reset)
	before := c.pods[name].DeepCopy()
	version := c.send(task)
	c.Return(task, tally.Result{Version: version})
	after := c.pods[name]
	c.pods[name] = before // another program takes it back
	c.stamp(name)
	c.show(name)
	c.none("it was undone")
	c.pods[name] = after
	c.stamp(name)
	c.wait(3 * time.Second)
	c.kubelet(name, true)
	c.none("the Pod settles")
	if plan := c.plan(); plan.Updating != 0 || plan.Trial != 1 {
		t.Errorf("the plan is %+v", plan)
	}
	c.wait(time.Minute)
	c.one(tally.Update)
}

func TestAnnouncements(t *testing.T) {
	c := newCluster(t, logging("log:1"), 2)
	c.Changed(func(string) {})
	c.DueChanged(func(string) {})
	for _, step := range []struct {
		name         string
		do           func()
		changed, due bool
	}{
		{"nothing happens", func() {}, false, false},
		{"a Pod has nothing to tell", func() { c.show("p0") }, false, false},
		{"a Pod is not Ready", func() { c.kubelet("p0", false) }, true, false},
		{"its sidecar does not run", func() {
			c.pods["p0"].Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
			c.pods["p0"].Status.ContainerStatuses[1].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
			c.show("p0")
		}, true, false},
		{"it runs again", func() { c.kubelet("p0", false) }, true, false},
		{"it is Ready", func() { c.ready("p0", true) }, true, false},
		{"another content is current", func() { c.apply(logging("log:2")) }, true, true},
		{"a Pod changes", func() { c.show("p1") }, true, true},
		{"a Task is taken", func() { c.one(tally.Update) }, true, false},
		{"the SidecarSet is gone", func() { c.SetSnapshot(match.Build(nil, nil)) }, true, false},
	} {
		step.do()
		changed, due := false, false
		c.Changed(func(string) { changed = true })
		c.DueChanged(func(string) { due = true })
		if changed != step.changed || due != step.due {
			t.Errorf("%s: changed %v, due %v", step.name, changed, due)
		}
		c.wait(time.Second)
	}
	if due := c.Due("logging", 64); due.Program != nil || len(due.Tasks) > 0 {
		t.Errorf("of a SidecarSet that is gone, there is %+v", due)
	}
}
