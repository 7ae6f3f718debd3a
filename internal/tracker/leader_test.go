package tracker_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/fixtures/cluster"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tracker"
)

// half has four available Pods, two that are updating, and four that are outdated, at maxUnavailable 2.
func half(t *testing.T) (c *leader, updating []string) {
	c = newLeader(t, strategy(logging("log:1"), 2), 10)
	c.apply(strategy(logging("log:2"), 2))
	for range 3 {
		for _, name := range c.roll() {
			c.wait(3 * time.Second)
			c.kubelet(name, true)
		}
		c.wait(time.Minute)
	}
	return c, c.roll()
}

// A Pod that disappears while it is updating uses the budget for a while: for as long as min-ready-seconds,
// or for ten minutes if it has failed. That is stored before the next available Pod is written.
func TestAPodThatIsUpdatingDisappears(t *testing.T) {
	remove := func(c *leader, name string) {
		c.Delete(podstate.FromPod(c.pods[name]))
		delete(c.pods, name)
	}
	terminate := func(c *leader, name string) {
		c.pods[name].DeletionTimestamp = new(metav1.NewTime(c.now))
		c.show(name)
	}
	phase := func(phase corev1.PodPhase) func(*leader, string) {
		return func(c *leader, name string) {
			c.pods[name].Status.Phase = phase
			c.show(name)
		}
	}
	crashes := func(c *leader, name string) {
		cluster.Wait(c.pods[name], "log", "CrashLoopBackOff")
		c.ready(name, false)
	}
	dies := func(c *leader, name string) {
		c.ready(name, false)
		c.SetNodes(map[podstate.Name]inplace.Node{podstate.MakeName("node"): {NotReady: true}})
		remove(c, name)
		c.SetNodes(map[podstate.Name]inplace.Node{podstate.MakeName("node"): {}})
	}
	// other is an available Pod with the revision.
	other := func(c *leader, name string) string {
		for other, p := range c.pods {
			if p.Annotations[appsv1beta1.AnnotationInPlace] != "" && other != name && p.Status.ObservedGeneration == p.Generation {
				return other
			}
		}
		return ""
	}
	const short, long = 30 * time.Second, 10 * time.Minute
	for name, tc := range map[string]struct {
		do   func(c *leader, name string)
		want time.Duration
	}{
		"it is being deleted":             {terminate, short},
		"it is deleted at once":           {remove, short},
		"first the one, then both":        {func(c *leader, name string) { terminate(c, name); c.show(name); remove(c, name) }, short},
		"it crashes, and is deleted":      {func(c *leader, name string) { crashes(c, name); remove(c, name) }, long},
		"it fails":                        {phase(corev1.PodFailed), long},
		"it fails, and is deleted":        {func(c *leader, name string) { phase(corev1.PodFailed)(c, name); remove(c, name) }, long},
		"an available one is evicted":     {func(c *leader, name string) { phase(corev1.PodFailed)(c, other(c, name)) }, long},
		"an available one is deleted":     {func(c *leader, name string) { remove(c, other(c, name)) }, 0},
		"a new list does not have it":     {func(c *leader, name string) { delete(c.pods, name); c.list(); c.list() }, short},
		"another has its name":            {func(c *leader, name string) { c.create(name) }, short},
		"it is not selected":              {func(c *leader, name string) { c.pods[name].Labels = nil; c.show(name); remove(c, name) }, 0},
		"it is evicted, and exits with 0": {phase(corev1.PodSucceeded), long},
		"it is deleted, and exits with 0": {func(c *leader, name string) {
			c.pods[name].Status.Phase = corev1.PodSucceeded
			terminate(c, name)
		}, short},
		"it has done its task": {func(c *leader, name string) {
			c.pods[name].Spec.RestartPolicy = corev1.RestartPolicyOnFailure
			phase(corev1.PodSucceeded)(c, name)
		}, 0},
		"its node dies": {dies, long},
	} {
		t.Run(name, func(t *testing.T) {
			c, updating := half(t)
			tc.do(c, updating[0])
			c.edit(logging("log:2")) // there is room now
			plan := c.plan()
			if got := plan.Status.Disappeared; (got == 1) != (tc.want > 0) {
				t.Fatalf("%d Pods have disappeared, want one for %v", got, tc.want)
			}
			if tc.want == 0 {
				return
			}
			if until := c.now.Add(tc.want).Unix(); plan.Status.DisappearedUntil != until || plan.BudgetUsed != plan.Updating+1 || plan.Rule != rollout.Storing && plan.Rule != rollout.SlowStart {
				t.Errorf("the plan is %+v, want the budget to be used until %d", plan, until)
			}
			c.none("before it is stored")
			c.reconcile()
			if n, want := len(c.items(tracker.Update)), plan.Available-plan.Unavailable; n != want {
				t.Errorf("%d writes begin once it is stored, want %d", n, want)
			}

		})
	}
}

// A Pod with the revision before disappears after an edit, and before the operator has recorded the
// next revision. It uses the budget.
func TestAPodThatDisappearsRightAfterAnEdit(t *testing.T) {
	c, updating := half(t)
	c.edit(logging("log:3"))
	c.stored = rollout.Begun
	c.Delete(podstate.FromPod(c.pods[updating[0]]))
	plan := c.plan()
	if until := c.now.Add(10 * time.Minute).Unix(); plan.Status != (rollout.Status{NotReadyBefore: rollout.Begun.NotReadyBefore, Disappeared: 1, DisappearedUntil: until}) || plan.BudgetUsed != 2 {
		t.Errorf("the plan is %+v, want the budget to be used until %d", plan, until)
	}
	c.none("before it is stored")
}

// How many Pods were down before is known once the first Pod is written.
func TestPodsThatWereDownBefore(t *testing.T) {
	c := newLeader(t, logging("log:1"), 4)
	c.ready("p3", false)
	if plan := c.plan(); plan.Status != rollout.Begun {
		t.Errorf("before the first write, the plan is %+v", plan)
	}
	c.apply(logging("log:2"))
	c.roll()
	if plan := c.plan(); plan.Status.NotReadyBefore != 1 || plan.Write != nil {
		t.Errorf("after the first write, the plan is %+v", plan)
	}
	c.ready("p3", true)
	c.edit(strategy(logging("log:2"), "50%"))
	if plan := c.plan(); plan.Status.NotReadyBefore != 1 || plan.Numbers.Budget != 2 {
		t.Errorf("with another strategy, the plan is %+v", plan)
	}
	c.edit(logging("log:1"))
	c.stored = rollout.Begun
	if plan := c.plan(); plan.Status != rollout.Begun {
		t.Errorf("with another revision, the plan is %+v", plan)
	}
}

func TestNoPodIsWrittenBeforeItsRevisionIsRecorded(t *testing.T) {
	c := newLeader(t, logging("log:1"), 2)
	old := c.compiled
	c.edit(logging("log:2"))
	if _, ok := c.Pass(tracker.Current{Compiled: old, Revision: old.Revision(), Since: c.now}); ok {
		t.Error("an older compiled SidecarSet is taken over")
	}
	for _, revision := range []string{"", "another"} {
		if p, ok := c.Pass(tracker.Current{Compiled: c.compiled, Revision: revision, Since: c.now}); !ok || p.Plan != nil || len(p.Write) > 0 || p.Matched != 2 {
			t.Errorf("with revision %q: %+v", revision, p)
		}
	}
	c.one(tracker.Update)
}

// Pods on a node that is not ready, or gone, are in no counter as long as they are not Ready.
func TestPodsOnDeadNodes(t *testing.T) {
	c := newLeader(t, strategy(logging("log:1"), 1), 4)
	c.apply(strategy(logging("log:2"), 1))
	victim := c.roll()[0]
	c.edit(logging("log:2").Spec("updateStrategy", map[string]any{"paused": true, "maxUnavailable": 1}))
	node := podstate.MakeName("node")
	for _, step := range []struct {
		name  string
		do    func()
		total int
		told  bool
	}{
		{"no Node is known", func() { c.ready(victim, false); c.SetNode(node, &inplace.Node{NotReady: true}) }, 4, true},
		{"the Node is gone", func() { c.SetNodes(map[podstate.Name]inplace.Node{}) }, 3, true},
		{"the Pod is Ready", func() { c.ready(victim, true) }, 4, true},
		{"and not any more", func() { c.ready(victim, false) }, 3, true},
		{"the Node is ready", func() { c.SetNode(node, &inplace.Node{}) }, 4, true},
		{"the Node is not ready", func() { c.SetNode(node, &inplace.Node{NotReady: true}) }, 3, true},
		{"another Node is", func() { c.SetNode(podstate.MakeName("other"), &inplace.Node{}) }, 3, false},
		{"it is ready again", func() { c.SetNodes(map[podstate.Name]inplace.Node{node: {}}) }, 4, true},
		{"it is deleted", func() { c.SetNode(node, nil) }, 3, true},
		{"the Pod has none", func() { c.pods[victim].Spec.NodeName = ""; c.ready(victim, false) }, 4, true},
	} {
		c.Changed(func(string, bool) {})
		step.do()
		told := false
		c.Changed(func(string, bool) { told = true })
		uses := 1
		if c.pods[victim].Spec.NodeName == "" {
			uses = 0
		}
		if plan := c.plan(); plan.Total != step.total || plan.BudgetUsed != uses || !told && step.told {
			t.Errorf("%s: %d Pods, of which %d use the budget, want %d and %d; told: %v", step.name, plan.Total, plan.BudgetUsed, step.total, uses, told)
		}
	}
}

func TestAKubeletThatIsTooOldBlocksItsPods(t *testing.T) {
	native := func(image string) *fixtures.SidecarSetBuilder {
		return strategy(fixtures.SidecarSet("logging").Select("app", "web").Native("log", image), 1)
	}
	c := newLeader(t, native("log:1"), 1)
	node := podstate.MakeName("node")
	c.SetNodes(map[podstate.Name]inplace.Node{node: {TooOld: true}})
	c.apply(native("log:2"))
	c.pass()
	if got := c.blocked(); got != "NodeTooOld" {
		t.Errorf("blocked for %q", got)
	}
	c.SetNode(node, &inplace.Node{})
	if got := c.blocked(); got != "" || c.plan().Outdated != 1 {
		t.Errorf("when the node has been upgraded, blocked for %q", got)
	}
}

// A condition is written when nothing else is, once for a Pod and a revision. If another program
// removes it, it is not written again.
func TestLabels(t *testing.T) {
	c := newLeader(t, logging("log:1"), 1)
	c.none("a Pod that was injected with the revision")
	c.apply(logging("log:2"))
	c.roll()
	c.none("its update is under way")
	c.wait(3 * time.Second)
	c.kubelet("p0", true)
	item := c.one(tracker.Label)
	c.none("it is under way")
	c.Done(item, tracker.Result{Reason: inplace.WriteRejected})
	c.wait(29 * time.Second)
	if items := c.items(tracker.Label); len(items) > 0 {
		t.Errorf("%d writes begin soon after one that was refused", len(items))
	}
	c.wait(time.Second)
	c.Done(c.one(tracker.Label), tracker.Result{Version: c.stamp("p0")})
	for range 3 { // events come, without the condition
		c.ready("p0", false)
		c.ready("p0", true)
		if items := c.items(tracker.Label); len(items) > 0 {
			t.Errorf("%d writes begin after the condition was removed", len(items))
		}
	}
	c.apply(logging("log:3"))
	c.wait(time.Minute)
	if names := c.roll(); len(names) != 1 {
		t.Fatalf("%v are updated", names)
	}
	c.kubelet("p0", true)
	c.one(tracker.Label)
}

// hot is a Pod whose hot upgrade can be ended.
func hot(t *testing.T) *leader {
	set := func(image string) *fixtures.SidecarSetBuilder {
		return strategy(fixtures.SidecarSet("logging").Select("app", "web").
			Container("log", image).With("upgradeStrategy", map[string]any{"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:1"}), 1)
	}
	c := newLeader(t, set("log:1"), 2)
	c.apply(set("log:2"))
	name := c.roll()[0]
	c.wait(3 * time.Second)
	c.kubelet(name, true)
	return c
}

// The end of a hot upgrade is a write like any other: it is sent once, and the Pod rests if it is
// refused or undone. Until then the Pod is updating.
func TestResets(t *testing.T) {
	c := hot(t)
	item := c.one(tracker.Reset)
	name := item.Summary.Name
	c.kubelet(name, true)
	c.none("it is under way, whatever events come")
	c.Done(item, tracker.Result{Reason: inplace.WriteRejected})
	c.wait(29 * time.Second)
	c.none("it was refused")
	if again := c.plan().Next; again != c.now.Add(time.Second).Unix() {
		t.Errorf("it looks again at %v", again)
	}
	c.wait(time.Second)
	item = c.one(tracker.Reset)
	before := c.pods[name].DeepCopy()
	version := c.send(item)
	c.Done(item, tracker.Result{Version: version})
	after := c.pods[name]
	c.pods[name] = before // another program takes it back
	c.stamp(name)
	c.show(name)
	c.none("it was undone")
	c.pods[name] = after
	c.stamp(name)
	c.wait(3 * time.Second)
	c.kubelet(name, true)
	c.none("the Pod is available")
	if plan := c.plan(); plan.Updating != 0 || plan.Unavailable != 1 {
		t.Errorf("the plan is %+v", plan)
	}
	c.wait(time.Minute)
	c.one(tracker.Update)
}

func TestAnnouncements(t *testing.T) {
	c := newLeader(t, logging("log:1"), 2)
	c.Changed(func(string, bool) {})
	for _, step := range []struct {
		name            string
		do              func()
		changed, edited bool
	}{
		{"nothing happens", func() {}, false, false},
		{"a Pod has nothing to tell", func() { c.show("p0") }, false, false},
		{"a Pod is not Ready", func() { c.kubelet("p0", false) }, true, false},
		{"its sidecar does not run", func() {
			cluster.Wait(c.pods["p0"], "log", "CrashLoopBackOff")
			c.show("p0")
		}, true, false},
		{"it runs again", func() { c.kubelet("p0", false) }, true, false},
		{"it is Ready", func() { c.ready("p0", true) }, true, false},
		{"another revision is current", func() { c.edit(logging("log:2")) }, true, true},
		{"a Pod changes", func() { c.show("p1") }, true, false},
		{"a Pod is written", func() { c.roll() }, true, false},
		{"the SidecarSet is gone", func() { c.SetSnapshot(match.Build(nil, nil)) }, true, false},
	} {
		step.do()
		changed, edited := false, false
		c.Changed(func(_ string, is bool) { changed, edited = true, is })
		if changed != step.changed || edited != step.edited {
			t.Errorf("%s: changed %v, edited %v", step.name, changed, edited)
		}
		c.wait(time.Second)
	}
	if p, ok := c.Pass(tracker.Current{Compiled: c.compiled}); ok {
		t.Errorf("of a SidecarSet that is gone, there is %+v", p)
	}
}
