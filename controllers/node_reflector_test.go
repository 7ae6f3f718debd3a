package controllers

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	sourcetesting "k8s.io/client-go/tools/cache/testing"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/rollout"
	"github.com/sidecarset/operator/internal/tally"
)

func nodeNamed(name string, ready corev1.ConditionStatus) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.NodeInfo.KubeletVersion = "v1.37.1"
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	return n
}

// counts is the number of Pods in the rules' numbers: those on dead nodes are not among them.
func counts(t *testing.T, tl *tally.Tally) int {
	t.Helper()
	program := tl.State("log").Program
	plan, ok := tl.SetCurrent("log", tally.Current{Program: program, Revision: program.Revision(), Status: rollout.Begun})
	if !ok {
		t.Fatal("the content is not taken over")
	}
	return plan.Total
}

// A Pod that is not Ready does not count while its Node is gone or not ready.
func TestNodeStoreTakesNodes(t *testing.T) {
	for name, form := range map[string]func(*corev1.Node) any{
		"Nodes":                func(n *corev1.Node) any { return n },
		"what is kept of them": func(n *corev1.Node) any { return node{n.Name, inplace.NodeOf(n)} },
	} {
		t.Run(name, func(t *testing.T) {
			pods, tl := localStore(t)
			s := nodeStore{pods.do}
			pod := notReady(webPod(1))
			pod.Spec.NodeName = "n"
			if err := pods.Add(pod); err != nil {
				t.Fatal(err)
			}
			check := func(what string, err error, want int) {
				t.Helper()
				if got := counts(t, tl); err != nil || got != want {
					t.Errorf("%s: %v, %d Pods count, want %d", what, err, got, want)
				}
			}
			ready, silent := form(nodeNamed("n", corev1.ConditionTrue)), form(nodeNamed("n", corev1.ConditionUnknown))
			check("before Nodes are listed", s.Delete(ready), 1)
			check("Replace", s.Replace([]any{ready}, "1"), 1)
			check("Update", s.Update(silent), 0)
			check("Update", s.Update(ready), 1)
			check("Delete", s.Delete(ready), 0)
			check("Add", s.Add(ready), 1)
			check("Replace", s.Replace(nil, "2"), 0)
			check("Resync", s.Resync(), 0)
			for what, err := range map[string]error{"Add": s.Add(pod), "Update": s.Update(1), "Delete": s.Delete("x"), "Replace": s.Replace([]any{ready, "x"}, "1")} {
				if err == nil {
					t.Errorf("%s takes what is no Node", what)
				}
			}
			check("what is no Node", nil, 0)
		})
	}
}

// The reflector's own store keeps little of Nodes, under their names.
func TestNodeStoreTransforms(t *testing.T) {
	store := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.WithTransformer(nodeStore{}.Transformer()))
	for range 2 {
		if err := store.Add(nodeNamed("n", corev1.ConditionFalse)); err != nil {
			t.Fatal(err)
		}
	}
	want := []any{node{"n", inplace.Node{NotReady: true}}}
	if diff := cmp.Diff(want, store.List(), cmp.AllowUnexported(node{})); diff != "" {
		t.Errorf("the store (-want +got):\n%s", diff)
	}
	if err := store.Delete(nodeNamed("n", corev1.ConditionTrue)); err != nil || len(store.ListKeys()) != 0 {
		t.Errorf("Delete: %v, %v are left", err, store.ListKeys())
	}
}

// nodeSource is an API server's list and watch of Nodes, without WatchList.
type nodeSource struct {
	*sourcetesting.FakeControllerSource
}

func (nodeSource) IsWatchListSemanticsUnSupported() bool { return true }

func TestNodeWatch(t *testing.T) {
	server := podSource{sourcetesting.NewFakeControllerSource()}
	pod := notReady(webPod(1))
	pod.Spec.NodeName = "n"
	server.Add(pod)
	server.Add(webPod(2))
	nodes := nodeSource{sourcetesting.NewFakeControllerSource()}
	p := newPodTally(&fixtures.Snapshots{}, server, nil, newCollectors(prometheus.NewRegistry()))
	p.nodeSource = nodes
	runTally(t, p)
	for _, step := range []struct {
		do   func()
		want int
	}{
		{func() {}, 1},
		{func() { nodes.Add(nodeNamed("n", corev1.ConditionTrue)) }, 2},
		{func() { nodes.Modify(nodeNamed("n", corev1.ConditionUnknown)) }, 1},
		{func() { nodes.Modify(nodeNamed("n", corev1.ConditionTrue)) }, 2},
		{func() { nodes.Delete(nodeNamed("n", corev1.ConditionTrue)) }, 1},
	} {
		step.do()
		p.comesTo(t, step.want)
	}
}
