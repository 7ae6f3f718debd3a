package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// The README's command removes everything, even if no replica runs that could clean up. If
// webhooks remained, they would refuse Pods for ever.
func TestTheReadmesCommandIsACompleteUninstall(t *testing.T) {
	operator.NeedReplicas(t)
	c := apart(t)
	for name, alive := range map[string]bool{"while the operator runs": true, "when it does not": false} {
		t.Run(name, func(t *testing.T) {
			_, replica := installReady(t, c)
			if !alive {
				replica.Kill()
			}
			if _, err := c.Kubectl(t.Context(), "", uninstall...); err != nil {
				t.Fatal(err)
			}
			await.Eventually(t, "nothing of it", func(ctx context.Context) error {
				return nothingIsLeft(ctx, c)
			})
			if _, err := c.Kubectl(t.Context(), "", "-n", "default", "run", "selected", "--image=example.com/app:v1", "--labels=app=web", "--dry-run=server"); err != nil {
				t.Errorf("a Pod that was selected: %v", err)
			}
		})
	}
}

// nothingIsLeft returns an error unless all that the operator's manifests install is gone, but the CRD.
func nothingIsLeft(ctx context.Context, c *stand.Cluster) error {
	left, err := c.Kubectl(ctx, "", "get", "-o", "name", "--ignore-not-found", "-A",
		"mutatingwebhookconfigurations,validatingwebhookconfigurations,clusterroles,clusterrolebindings,flowschemas,prioritylevelconfigurations,leases,rolebindings,roles,endpointslices",
		"-l", "app.kubernetes.io/part-of=sidecarset")
	if err == nil && left == "" {
		left, err = c.Kubectl(ctx, "", "get", "mutatingwebhookconfigurations", "-o", "name")
	}
	if err == nil && left != "" {
		err = fmt.Errorf("there are %s", left)
	}
	return err
}

// installReady installs the operator, with one replica and a SidecarSet that is Ready.
func installReady(t *testing.T, c *stand.Cluster) (*deploy.Operator, *deploy.Replica) {
	t.Helper()
	installed, err := deploy.Install(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	replica, err := installed.StartReplica(t.Context(), 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(replica.Process.Stop)
	await.Eventually(t, "a SidecarSet", func(ctx context.Context) error {
		_, err := c.Kubectl(ctx, selectsAll, "apply", "-f", "-")
		return err
	})
	if _, err := c.Kubectl(t.Context(), "", "wait", "--for=condition=Ready", "sidecarset/all", "--timeout=180s"); err != nil {
		t.Fatal(err)
	}
	return installed, replica
}

// A replica is a Pod of the operator's Namespace, so it ends when the Namespace is deleted. Its webhooks
// go before: as long as they were left, API servers would refuse selected Pods.
func TestWebhooksGoBeforeThePodsOfTheOperator(t *testing.T) {
	operator.NeedReplicas(t)
	c := apart(t)
	for n := range testkit.Scaled(2, 10) {
		t.Run(fmt.Sprint("time ", n+1), func(t *testing.T) {
			installed, replica := installReady(t, c)
			kubelet := asKubelet(t, c, replica)
			if _, err := c.Kubectl(t.Context(), "", "delete", "namespace", deploy.Namespace, "--wait=false"); err != nil {
				t.Fatal(err)
			}
			if err := <-kubelet; err != nil {
				t.Fatal(err)
			}
			shards, _, err := testkit.Shards(t.Context(), installed.Clients)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range shards {
				if s != nil && !s.IsEmpty() {
					t.Errorf("the replica has ended, and %s has %v", s.Object.Name, s.Webhooks())
				}
			}
			if _, err := c.Kubectl(t.Context(), "", uninstall...); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// asKubelet creates a Pod of a node in the operator's Namespace. When the Pod is deleted, it stops the
// replica, as a kubelet does with the container of the Pod.
func asKubelet(t *testing.T, c *stand.Cluster, replica *deploy.Replica) <-chan error {
	t.Helper()
	const pod = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "replica"},
		"spec": {"nodeName": "ours", "automountServiceAccountToken": false,
		"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
		"containers": [{"name": "c", "image": "example.com/c:v1", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}}`
	await.Eventually(t, "the Pod of the replica", func(ctx context.Context) error {
		_, err := c.Kubectl(ctx, pod, "-n", deploy.Namespace, "apply", "-f", "-")
		return err
	})
	ended := make(chan error, 1)
	go func() {
		_, err := c.Kubectl(t.Context(), "", "-n", deploy.Namespace, "wait", "--for=jsonpath={.metadata.deletionTimestamp}", "pod/replica", "--timeout="+await.Patience.String())
		if err != nil && strings.Contains(err.Error(), "NotFound") {
			err = nil // its node does not exist, so the garbage collector may have been quicker
		}
		replica.Process.Stop()
		_, _ = c.Kubectl(t.Context(), "", "-n", deploy.Namespace, "delete", "pod/replica", "--force", "--grace-period=0", "--ignore-not-found")
		ended <- err
	}()
	return ended
}

const selectsAll = `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: all, annotations: {sidecarset.io/timeout-seconds: "30"}}
spec:
  selector: {matchLabels: {app: web}}
  updateStrategy: {type: NotUpdate}
  containers: [{name: side, image: "example.com/side:v1"}]
`
