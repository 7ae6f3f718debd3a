package controllers

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sourcetesting "k8s.io/client-go/tools/cache/testing"

	"github.com/sidecarset/operator/internal/fixtures"
)

func nodeNamed(name string, ready corev1.ConditionStatus) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.NodeInfo.KubeletVersion = "v1.37.1"
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	return n
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
	p := newPodTracker(&fixtures.Snapshots{}, server, nil, newCollectors(prometheus.NewRegistry()))
	p.nodeSource = nodes
	runTracker(t, p)
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
