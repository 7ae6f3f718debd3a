package tracker_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// An image ends the Pods that get it, or their nodes. At maxUnavailable 1, one or two of ten get it in
// ten minutes.
func TestAnImageThatEndsItsPods(t *testing.T) {
	for name, ends := range map[string]func(c *leader, name string){
		"the kubelet evicts the Pod, which is Ready and then Failed": func(c *leader, name string) {
			c.wait(20 * time.Second)
			c.pods[name].Status.Phase, c.pods[name].Status.Reason = corev1.PodFailed, "Evicted"
			c.stamp(name)
			c.show(name)
			c.create(name + "x") // its ReplicaSet replaces it
		},
		"its node dies, which is noticed later": func(c *leader, name string) {
			c.wait(50 * time.Second)
			c.SetNode(podstate.MakeName(c.pods[name].Spec.NodeName), &inplace.Node{NotReady: true})
			c.ready(name, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newLeader(t, strategy(logging("log:1"), 1), 10)
			nodes := map[podstate.Name]inplace.Node{podstate.MakeName("node"): {}}
			for i := range 10 {
				pod := c.pods[fmt.Sprint("p", i)]
				pod.Spec.NodeName = fmt.Sprint("node-", i)
				nodes[podstate.MakeName(pod.Spec.NodeName)] = inplace.Node{}
				c.ready(pod.Name, true)
			}
			c.SetNodes(nodes)
			c.edit(strategy(logging("log:2"), 1))
			lost := 0
			for end := c.now.Add(10 * time.Minute); c.now.Before(end); c.wait(time.Second) {
				c.reconcile()
				for _, name := range c.roll() {
					c.wait(3 * time.Second)
					c.kubelet(name, true)
					ends(c, name)
					lost++
				}
			}
			if lost < 1 || lost > 2 {
				t.Errorf("%d of 10 Pods got the image, want one or two", lost)
			}
		})
	}
}

// Another program takes each update back, with the record of it, seconds after its event has come. The
// Pod is written once in ten minutes, and the status says why.
func TestUpdatesThatAreUndoneLater(t *testing.T) {
	c := newLeader(t, strategy(logging("log:1"), 1), 1)
	before := c.pods["p0"].DeepCopy()
	c.edit(strategy(logging("log:2"), 1))
	writes, silent := 0, 0
	for end := c.now.Add(time.Hour); c.now.Before(end); c.wait(time.Second) {
		for _, name := range c.roll() {
			writes++
			c.plan()
			c.wait(2 * time.Second)
			undone := before.DeepCopy()
			undone.Generation, undone.Status = c.pods[name].Generation+1, c.pods[name].Status
			c.pods[name] = undone
			c.stamp(name)
			c.kubelet(name, true)
		}
		if c.blocked() != string(inplace.WriteReverted) {
			silent++
		}
	}
	if writes > 8 || silent > 10 {
		t.Errorf("%d writes of one Pod in an hour, and for %d seconds the status does not say why", writes, silent)
	}
}
