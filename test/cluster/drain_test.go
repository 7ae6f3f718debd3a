package cluster

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
)

// The only node of a cluster can be drained if the operator is installed for that. In the
// default profile the last replica cannot be evicted, so the node cannot be drained.
func TestDrainOfTheOnlyNode(t *testing.T) {
	one := apart(t)
	kubectl := func(args ...string) (string, error) { return one.Kubectl(t.Context(), "", args...) }
	install := func(profile string) {
		t.Helper()
		for _, args := range [][]string{
			{"apply", "--server-side", "-k", filepath.Join(deploy.Root(), profile)},
			{"-n", deploy.Namespace, "rollout", "status", "deployment/sidecarset-operator", "--timeout=180s"},
		} {
			if _, err := kubectl(args...); err != nil {
				t.Fatal(err)
			}
		}
	}
	drain := func(timeout string) error {
		_, err := kubectl("drain", "node-0", "--ignore-daemonsets", "--timeout="+timeout)
		return err
	}

	install("config/overlays/single-node")
	if pods, err := kubectl("-n", deploy.Namespace, "get", "pods", "-o", "name"); err != nil || strings.Count(pods, "pod/") != 1 {
		t.Errorf("the Pods are %q, %v", pods, err)
	}
	if err := drain(await.Patience.String()); err != nil {
		t.Errorf("single-node: %v", err)
	}
	if _, err := kubectl("uncordon", "node-0"); err != nil {
		t.Fatal(err)
	}
	install("config/default")
	await.Eventually(t, "a refused eviction", func(context.Context) error {
		err := drain("8s") // kubectl tries an eviction again after 5 s
		if err == nil {
			t.Fatal("default: the node was drained")
		}
		if !strings.Contains(err.Error(), "disruption budget") {
			return err
		}
		return nil
	})
}
