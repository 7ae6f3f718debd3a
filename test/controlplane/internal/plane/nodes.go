package plane

import (
	"context"
	"fmt"
)

// fakeNodeAnnotation marks the nodes for which kwok acts as the kubelet.
const fakeNodeAnnotation = "kwok.x-k8s.io/node"

type object = map[string]any

// fakeNode returns the i-th node: node-0, node-1 and so on. The stage that initialises a node
// sets its size.
func fakeNode(i int, version string) object {
	name := fmt.Sprintf("node-%d", i)
	return object{
		"apiVersion": "v1", "kind": "Node",
		"metadata": object{
			"name": name,
			"annotations": object{
				fakeNodeAnnotation:           "fake",
				"stand.test/kubelet-version": version,
			},
			"labels": object{
				"kubernetes.io/hostname":      name,
				"kubernetes.io/os":            "linux",
				"kubernetes.io/arch":          "amd64",
				"topology.kubernetes.io/zone": fmt.Sprintf("zone-%d", i%3),
			},
		},
	}
}

func createNodes(ctx context.Context, c *client, server string, nodes int, version string) error {
	for i := range nodes {
		if err := c.create(ctx, server+"/api/v1/nodes", fakeNode(i, version)); err != nil {
			return fmt.Errorf("creating fake node %d: %w", i, err)
		}
	}
	return nil
}

// nodesReady returns an error unless this many nodes are Ready and without taints.
func nodesReady(ctx context.Context, c *client, server string, want int) error {
	var list struct {
		Items []struct {
			Spec   struct{ Taints []any }
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := c.get(ctx, server+"/api/v1/nodes?resourceVersion=0", &list); err != nil {
		return err
	}
	ready := 0
	for _, node := range list.Items {
		for _, condition := range node.Status.Conditions {
			if condition.Type == "Ready" && condition.Status == "True" && len(node.Spec.Taints) == 0 {
				ready++
			}
		}
	}
	if ready < want {
		return fmt.Errorf("%d of %d nodes are Ready", ready, want)
	}
	return nil
}
