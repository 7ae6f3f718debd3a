package tracker_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tracker"
)

// Between its write and its event, a Pod counts as written, and the pass continues for the others.
func TestAPodWhoseWriteIsUnderWayCountsAsWritten(t *testing.T) {
	c := newLeader(t, strategy(logging("log:1"), 1), 3)
	c.apply(strategy(logging("log:2"), 1))
	item := c.one(tracker.Update)
	name := item.Summary.Name
	check := func(when string) {
		t.Helper()
		c.none(when)
		if plan := c.plan(); plan.Updating != 1 || plan.Unavailable != 1 || plan.Outdated != 2 || plan.Rule != rollout.Budget || plan.Who == nil || plan.Who.Summary.Name != name {
			t.Errorf("%s, the plan is %+v", when, plan)
		}
	}
	check("the write is under way")
	version := c.send(item)
	check("it is carried out")
	c.Done(item, tracker.Result{Version: version})
	check("its event has not come")
	c.Watched(version - 1)
	check("an earlier event has come")
	c.show(name)
	check("its event has come")
	if item.Was != podstate.WasReady {
		t.Errorf("the Pod is said to be %v before", item.Was)
	}
	for _, ready := range []bool{false, true} { // before the sidecars are restarted, the Pod of another write counts as before
		c.ready(name, ready)
		check("its kubelet has not acted")
	}
}

// A Pod whose write is refused rests twice as long each time, and says why. The others continue.
func TestARefusedPodRests(t *testing.T) {
	c := newLeader(t, logging("log:1"), 1)
	c.apply(logging("log:2"))
	refuse := func(rest time.Duration) {
		t.Helper()
		c.Done(c.one(tracker.Update), tracker.Result{Reason: inplace.WriteRejected, Message: "denied"})
		list := c.plan().Blocked.List()
		if len(list) != 1 || list[0].Reason != "WriteRejected" || list[0].Message != "denied" {
			t.Errorf("blocked are %+v", list)
		}
		if again := c.plan().Next; again != c.now.Add(rest).Unix() {
			t.Errorf("the Pod rests until %v, want %v from %v on", again, rest, c.now)
		}
		c.wait(rest - time.Second)
		c.none("it rests")
		c.wait(time.Second)
	}
	for _, rest := range []int{30, 60, 120, 240, 300, 300} {
		refuse(time.Duration(rest) * time.Second)
	}
	c.create("q")
	c.pods["q"].Annotations = c.pods["p0"].Annotations
	c.pods["q"].Spec.Containers = c.pods["p0"].Spec.Containers
	c.kubelet("q", true)
	c.Done(c.one(tracker.Update), tracker.Result{Reason: inplace.WriteRejected})
	c.wait(31 * time.Second)
	if names := c.roll(); len(names) != 1 || names[0] != "q" {
		t.Errorf("beside a Pod that rests, %v are written", names)
	}
	c.apply(logging("log:3"))
	if c.blocked() != "" {
		t.Error("it rests under another revision")
	}
}

func TestAWriteEnds(t *testing.T) {
	refused := tracker.Result{Reason: inplace.WriteRejected}
	other := func(c *leader) { // another program takes the write back
		p := c.pods["p0"]
		old := newLeader(t, logging("log:1"), 1).pods["p0"]
		p.Spec, p.Annotations = old.Spec, old.Annotations
		c.stamp("p0")
		c.show("p0")
	}
	for name, tc := range map[string]struct {
		do      func(c *leader, item tracker.WorkItem)
		rest    time.Duration // until a write begins; -1: none does
		blocked string
	}{
		"the live Pod differs": {func(c *leader, item tracker.WorkItem) { c.Done(item, tracker.Result{Message: "x"}) }, time.Second, ""},
		"it is refused":        {func(c *leader, item tracker.WorkItem) { c.Done(item, refused) }, 30 * time.Second, "WriteRejected"},
		"it is refused, and another event comes": {func(c *leader, item tracker.WorkItem) {
			c.Done(item, refused)
			c.ready("p0", true)
		}, 30 * time.Second, "WriteRejected"},
		"it is refused, and the way changes": {func(c *leader, item tracker.WorkItem) {
			c.Done(item, refused)
			for _, policy := range []corev1.RestartPolicy{corev1.RestartPolicyNever, corev1.RestartPolicyAlways} {
				c.pods["p0"].Spec.RestartPolicy = policy
				c.kubelet("p0", true)
			}
		}, 0, ""},
		"it is written": {func(c *leader, item tracker.WorkItem) {
			c.Done(item, tracker.Result{Version: c.send(item)})
			c.show("p0")
		}, -1, ""},
		"it is written, and another program mirrors its image": {func(c *leader, item tracker.WorkItem) {
			version := c.send(item)
			c.pods["p0"].Spec.Containers[1].Image = "mirror/log:2"
			c.show("p0")
			c.Done(item, tracker.Result{Version: version})
		}, -1, ""},
		"it is undone, the answer comes first": {func(c *leader, item tracker.WorkItem) {
			c.Done(item, tracker.Result{Version: c.send(item)})
			other(c)
		}, 30 * time.Second, "WriteReverted"},
		"it is undone, the events come first": {func(c *leader, item tracker.WorkItem) {
			version := c.send(item)
			c.show("p0")
			other(c)
			c.Done(item, tracker.Result{Version: version})
		}, 10 * time.Minute, "WriteReverted"},
		"it is undone later": {func(c *leader, item tracker.WorkItem) {
			c.Done(item, tracker.Result{Version: c.send(item)})
			c.show("p0")
			c.wait(2 * time.Second)
			other(c)
		}, 10*time.Minute - 2*time.Second, "WriteReverted"},
		"it is undone later, and the record stays": {func(c *leader, item tracker.WorkItem) {
			c.Done(item, tracker.Result{Version: c.send(item)})
			record := c.pods["p0"].Annotations[appsv1beta1.AnnotationInPlace]
			other(c)
			c.pods["p0"].Annotations[appsv1beta1.AnnotationInPlace] = record
			c.stamp("p0")
			c.Tracker = newTracker() // a new leader
			c.SetTime(c.now)
			c.apply(logging("log:2"))
			c.show("p0")
		}, 10 * time.Minute, "WriteReverted"},
		"it returns twice": {func(c *leader, item tracker.WorkItem) {
			c.Done(item, tracker.Result{Version: c.send(item)})
			c.Done(item, refused)
			c.show("p0")
			c.Done(item, refused)
		}, -1, ""},
		"it is rejected for an earlier revision": {func(c *leader, item tracker.WorkItem) {
			c.apply(logging("log:3"))
			c.Done(item, refused)
		}, time.Second, ""},
		"it is written with an earlier revision": {func(c *leader, item tracker.WorkItem) {
			version := c.send(item)
			c.apply(logging("log:3"))
			c.Done(item, tracker.Result{Version: version})
			c.show("p0")
			c.none("its kubelet has not acted")
			c.kubelet("p0", true)
		}, 30 * time.Second, ""},
		"it is written, and another writer continues with the next revision": {func(c *leader, item tracker.WorkItem) {
			version := c.send(item)
			c.apply(logging("log:3"))
			c.send(tracker.WorkItem{Summary: item.Summary})
			c.show("p0")
			c.Done(item, tracker.Result{Version: version})
		}, -1, ""},
		"the Pod is deleted, and another has its name": {func(c *leader, item tracker.WorkItem) {
			old := c.compiled
			c.compiled = fixtures.Compiled(t, logging("log:1").Map())
			c.create("p0") // the deletion was not seen
			c.compiled = old
			c.Done(item, refused)
			c.reconcile() // one Pod has disappeared while it was updating
		}, 30 * time.Second, ""},
		"the SidecarSet does not select the Pod any more": {func(c *leader, item tracker.WorkItem) {
			for _, app := range []string{"db", "web"} {
				c.pods["p0"].Labels["app"] = app
				c.stamp("p0")
				c.show("p0")
			}
			c.Done(item, refused)
		}, 0, ""},
		"the SidecarSet is deleted, and created again": {func(c *leader, item tracker.WorkItem) {
			c.SetSnapshot(match.Build(nil, nil))
			c.Done(item, refused)
			c.SetSnapshot(match.Build([]*inject.Compiled{c.compiled}, map[string]labels.Set{}))
			c.plan()
		}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newLeader(t, logging("log:1"), 1)
			c.apply(logging("log:2"))
			tc.do(c, c.one(tracker.Update))
			if got := c.blocked(); got != tc.blocked {
				t.Errorf("blocked for %q, want %q", got, tc.blocked)
			}
			waited := time.Duration(-1)
			for d := time.Duration(0); d <= 11*time.Minute; d += time.Second {
				if len(c.items(tracker.Update)) > 0 {
					waited = d
					break
				}
				c.reconcile()
				c.wait(time.Second)
			}
			if waited != tc.rest {
				t.Errorf("a write begins after %v, want %v", waited, tc.rest)
			}
		})
	}
}
