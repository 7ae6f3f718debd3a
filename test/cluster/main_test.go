// Package cluster tests the operator on a whole control plane with simulated
// nodes: Deployments, restarts, and counters under load.
package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

var (
	cluster  *stand.Cluster
	operator *deploy.Operator
	replicas []*deploy.Replica
	api      client.Client
	// installed is what the complete installation created, before it was reduced to what the
	// stand can run.
	installed string
)

func TestMain(m *testing.M) {
	os.Exit(stand.Main(m, stand.Options{Full: true, Kwok: true, Namespace: true}, begin))
}

// begin installs the operator with the README's command while there is no node, so its Pods
// stay pending, and records what was created. Then it replaces the Deployment by processes,
// and lets nodes join.
func begin(ctx context.Context, c *stand.Cluster) error {
	cluster = c
	if _, err := cluster.Kubectl(ctx, "", "apply", "-k", filepath.Join(deploy.Root(), "config/default")); err != nil {
		return err
	}
	var err error
	if installed, err = awaitOwnPods(ctx); err != nil {
		return err
	}
	if _, err := cluster.Kubectl(ctx, "", "-n", deploy.Namespace, "delete", "deployment,poddisruptionbudget", "--all"); err != nil {
		return err
	}
	if api, operator, replicas, err = testkit.Begin(ctx, cluster); err != nil {
		return err
	}
	return joinNodes(ctx, 6)
}

// awaitOwnPods waits until the Deployment has its Pods, and returns them.
func awaitOwnPods(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, await.Patience)
	defer cancel()
	for {
		pods, err := cluster.Kubectl(ctx, "", "-n", deploy.Namespace, "get", "pods", "-o", "name")
		if err != nil || strings.Count(pods, "\n") == 2 {
			return pods, err
		}
	}
}

// joinNodes creates nodes that kwok manages.
func joinNodes(ctx context.Context, count int) error {
	for i := range count {
		capacity := corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1k"), corev1.ResourceMemory: resource.MustParse("10Ti"), corev1.ResourcePods: resource.MustParse("10k"),
		}
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name:        fmt.Sprintf("node-%d", i),
				Annotations: map[string]string{"kwok.x-k8s.io/node": "fake"},
				Labels:      map[string]string{"kubernetes.io/hostname": fmt.Sprintf("node-%d", i), "kubernetes.io/os": "linux"},
			},
			Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
		}
		if _, err := operator.Clients.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// crash kills all replicas, and removes their endpoints, as a cluster does. The next leader need not
// wait for the end of the Lease.
func crash(t *testing.T) {
	t.Helper()
	for _, replica := range replicas {
		replica.Kill()
		if err := operator.RemoveEndpoint(t.Context(), replica); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Kubectl(t, cluster, "", "-n", deploy.Namespace, "delete", "lease", deploy.Lease, "--ignore-not-found")
}

// restart starts all replicas again.
func restart(t *testing.T) {
	t.Helper()
	for i, replica := range replicas {
		started, err := operator.StartReplica(t.Context(), replica.Number)
		if err != nil {
			t.Fatal(err)
		}
		replicas[i] = started
	}
}

// uninstall are the arguments of the README's command.
var uninstall = []string{"delete", "-k", filepath.Join(deploy.Root(), "config/default"), "--ignore-not-found", "--timeout=" + await.Patience.String()}

// apply applies manifests, in which it replaces NS by the namespace, and deletes the
// SidecarSet of that name afterwards.
func apply(t *testing.T, namespace, manifests string) {
	t.Helper()
	testkit.Kubectl(t, cluster, strings.ReplaceAll(manifests, "NS", namespace), "apply", "-f", "-")
	t.Cleanup(func() {
		if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), "", "delete", "sidecarset", namespace, "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
}
