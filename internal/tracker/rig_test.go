package tracker_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/fixtures/cluster"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tracker"
)

// leader has real Pods with one SidecarSet, and a leader's Tracker that watches them.
type leader struct {
	*testing.T
	*tracker.Tracker
	compiled *inject.Compiled
	pods     map[string]*corev1.Pod
	version  int
	now      time.Time
	stored   rollout.Status     // in the API server
	taken    []tracker.WorkItem // by passes, and not asked for yet
}

func logging(image string) *fixtures.SidecarSetBuilder {
	return strategy(fixtures.SidecarSet("logging").Select("app", "web").Container("log", image), "100%")
}

func strategy(set *fixtures.SidecarSetBuilder, maxUnavailable any) *fixtures.SidecarSetBuilder {
	return set.Spec("updateStrategy", map[string]any{"type": "RollingUpdate", "maxUnavailable": maxUnavailable})
}

func newLeader(t *testing.T, set *fixtures.SidecarSetBuilder, pods int) *leader {
	c := &leader{T: t, Tracker: newTracker(), pods: map[string]*corev1.Pod{}, version: 100, now: time.Unix(1_800_000_000, 0)}
	c.SetTime(c.now)
	c.apply(set)
	for i := range pods {
		c.create(fmt.Sprint("p", i))
	}
	c.wait(time.Minute)
	return c
}

// edit stores the SidecarSet, and apply records its new revision, too.
func (c *leader) edit(set *fixtures.SidecarSetBuilder) {
	c.compiled = fixtures.Compiled(c.T, set.LatestRevision("logging-1").Map())
	c.SetSnapshot(match.Build([]*inject.Compiled{c.compiled}, map[string]labels.Set{}))
}

func (c *leader) apply(set *fixtures.SidecarSetBuilder) {
	c.edit(set)
	c.stored = rollout.Begun
	c.reconcile()
}

// pass is one of the leader.
func (c *leader) pass() tracker.Pass {
	c.Helper()
	c.SetTime(c.now)
	p, ok := c.Pass(tracker.Current{Compiled: c.compiled, Revision: c.compiled.Revision(), Since: c.now, Status: c.stored})
	if !ok || p.Plan == nil {
		c.Fatal("the revision is not taken over")
	}
	c.taken = append(c.taken, p.Write...)
	return p
}

// plan is what the leader knows, and reconcile stores its status, too.
func (c *leader) plan() rollout.Plan { return *c.pass().Plan }

func (c *leader) reconcile() {
	c.Helper()
	c.stored = c.plan().Status
	c.plan()
}

// create injects a Pod, and has its kubelet start it.
func (c *leader) create(name string) {
	c.Helper()
	p := cluster.Inject(c, fixtures.Pod(name).Namespace("shop").Label("app", "web").Container("web", "web:1"), c.now, c.compiled)
	p.UID = types.UID(name + "-" + strconv.Itoa(c.version))
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "web", Controller: new(true)}}
	p.Spec.NodeName = "node"
	c.pods[name] = p
	c.kubelet(name, true)
}

// kubelet runs what the Pod's spec says; the Pod is Ready or not.
func (c *leader) kubelet(name string, ready bool) {
	cluster.Run(c.pods[name], ready, c.now)
	c.stamp(name)
	c.show(name)
}

// ready changes the Pod's readiness alone.
func (c *leader) ready(name string, ready bool) {
	cluster.SetReady(c.pods[name], ready, c.now)
	c.stamp(name)
	c.show(name)
}

// stamp is a write of the Pod in the API server, and show delivers it.
func (c *leader) stamp(name string) uint64 {
	c.version++
	c.pods[name].ResourceVersion = strconv.Itoa(c.version)
	return uint64(c.version)
}

func (c *leader) show(name string) {
	c.Set(podstate.FromPod(c.pods[name]))
	version, _ := podstate.ParseVersion(c.pods[name].ResourceVersion)
	c.Watched(version)
}

// list delivers all Pods.
func (c *leader) list() {
	var records []*podstate.Summary
	for _, p := range c.pods {
		records = append(records, podstate.FromPod(p))
	}
	c.Replace(records)
	c.Watched(uint64(c.version))
}

func (c *leader) wait(d time.Duration) {
	for range int(d / time.Second) {
		c.now = c.now.Add(time.Second)
		c.SetTime(c.now)
	}
}

// label writes a condition.
func (c *leader) label(item tracker.WorkItem) {
	p := c.pods[item.Summary.Name]
	cluster.SetCondition(p, appsv1beta1.PodConditionUpgradable, true, c.now)
	podstate.Condition(p, appsv1beta1.PodConditionUpgradable).Message = `{"logging":true}`
	c.Done(item, tracker.Result{Version: c.stamp(p.Name)})
	c.show(p.Name)
}

// items are those of a pass, and of passes before, that are of this kind. Conditions are written first.
func (c *leader) items(kind tracker.Kind) []tracker.WorkItem {
	c.Helper()
	for {
		c.pass()
		items := c.taken
		c.taken = nil
		if kind == tracker.Label || len(items) == 0 || items[0].Kind != tracker.Label {
			for _, item := range items {
				if item.Kind != kind {
					c.Fatalf("a write of kind %d begins, want %d", item.Kind, kind)
				}
			}
			return items
		}
		for _, item := range items {
			c.label(item)
		}
	}
}

// one is the only write that begins.
func (c *leader) one(kind tracker.Kind) tracker.WorkItem {
	c.Helper()
	items := c.items(kind)
	if len(items) != 1 {
		c.Fatalf("%d writes begin, want one; %+v", len(items), c.plan())
	}
	return items[0]
}

func (c *leader) none(when string) {
	c.Helper()
	if items := c.items(tracker.Update); len(items) > 0 {
		c.Fatalf("%s: %d writes begin", when, len(items))
	}
}

// send carries out a write in the API server, and returns the version of the Pod.
func (c *leader) send(item tracker.WorkItem) uint64 {
	c.Helper()
	name := item.Summary.Name
	in := inplace.UpdateInput{Pod: c.pods[name], Compiled: c.compiled, Revision: inplace.RevisionOf(c.compiled), StateBefore: item.Was, Node: item.Node, Now: c.now}
	next, err := inplace.UpdateInPlace(in)
	if item.Kind == tracker.Reset {
		next, err = inplace.ResetHotUpgrades(in)
	}
	if err != nil || next.Patch == nil {
		c.Fatalf("Pod %s: %+v %v", name, next, err)
	}
	cluster.Patch(c, c.pods[name], next.Patch)
	return c.stamp(name)
}

// roll carries out the updates that begin, and returns the names of their Pods.
func (c *leader) roll() (names []string) {
	c.Helper()
	for _, item := range c.items(tracker.Update) {
		names = append(names, item.Summary.Name)
		c.Done(item, tracker.Result{Version: c.send(item)})
		c.show(item.Summary.Name)
	}
	return names
}

// blocked are the reasons of the Pods that are blocked or rest.
func (c *leader) blocked() string {
	var reasons []string
	for _, group := range c.plan().Blocked.List() {
		reasons = append(reasons, group.Reason)
	}
	return strings.Join(reasons, " ")
}
