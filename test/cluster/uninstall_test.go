package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// These tests install the operator themselves, one after the other. They come last, because the operator of the
// other tests is gone after them.
func TestInstallations(t *testing.T) {
	for _, replica := range replicas {
		replica.Process.Stop()
	}
	testkit.Kubectl(t, cluster, "", uninstall...)
	t.Run("webhooks go before the Pods of the operator", testNamespaceIsDeleted)
	t.Run("the only node is drained", testDrain)
	t.Run("the commands of the pages", testPages)
}

// nothingIsLeft returns an error unless all that the operator's manifests install is gone, but the CRD.
func nothingIsLeft(ctx context.Context) error {
	left, err := cluster.Kubectl(ctx, "", "get", "-o", "name", "--ignore-not-found", "-A",
		"mutatingwebhookconfigurations,validatingwebhookconfigurations,clusterroles,clusterrolebindings,flowschemas,prioritylevelconfigurations,leases,rolebindings,roles,endpointslices",
		"-l", "app.kubernetes.io/part-of=sidecarset")
	if err == nil && left == "" {
		left, err = cluster.Kubectl(ctx, "", "get", "mutatingwebhookconfigurations", "-o", "name")
	}
	if err == nil && left != "" {
		err = fmt.Errorf("there are %s", left)
	}
	return err
}

// A replica is a Pod of the operator's Namespace, so it ends when the Namespace is deleted. Its webhooks
// go before: as long as they were left, API servers would refuse selected Pods.
func testNamespaceIsDeleted(t *testing.T) {
	operator.NeedReplicas(t)
	for range testkit.Scaled(1, 10) {
		installed, err := deploy.Install(t.Context(), cluster)
		if err != nil {
			t.Fatal(err)
		}
		replica, err := installed.StartReplica(t.Context(), 20)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(replica.Process.Stop)
		applyReady(t, "all", "30", "Fail", "")
		ended := asKubelet(t, replica)
		testkit.Kubectl(t, cluster, "", "delete", "namespace", deploy.Namespace, "--wait=false")
		if err := <-ended; err != nil {
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
		testkit.Kubectl(t, cluster, "", uninstall...)
		await.Eventually(t, "nothing of it", nothingIsLeft)
	}
}

// asKubelet creates a Pod of a node in the operator's Namespace. When the Pod is deleted, it stops the
// replica, as a kubelet does with the container of the Pod.
func asKubelet(t *testing.T, replica *deploy.Replica) <-chan error {
	t.Helper()
	const pod = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "replica"},
		"spec": {"nodeName": "ours", "automountServiceAccountToken": false,
		"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
		"containers": [{"name": "c", "image": "example.com/c:v1", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}}`
	await.Eventually(t, "the Pod of the replica", func(ctx context.Context) error {
		_, err := cluster.Kubectl(ctx, pod, "-n", deploy.Namespace, "apply", "-f", "-")
		return err
	})
	ended := make(chan error, 1)
	go func() {
		_, err := cluster.Kubectl(t.Context(), "", "-n", deploy.Namespace, "wait", "--for=jsonpath={.metadata.deletionTimestamp}", "pod/replica", "--timeout="+await.Patience.String())
		if err != nil && strings.Contains(err.Error(), "NotFound") {
			err = nil // its node does not exist, so the garbage collector may have been quicker
		}
		replica.Process.Stop()
		_, _ = cluster.Kubectl(t.Context(), "", "-n", deploy.Namespace, "delete", "pod/replica", "--force", "--grace-period=0", "--ignore-not-found")
		ended <- err
	}()
	return ended
}

// The only node of a cluster can be drained if the operator is installed for that. In the
// default profile the last replica cannot be evicted, so the node cannot be drained.
func testDrain(t *testing.T) {
	kubectl := func(args ...string) string { return testkit.Kubectl(t, cluster, "", args...) }
	install := func(profile string) {
		t.Helper()
		kubectl("apply", "--server-side", "-k", filepath.Join(deploy.Root(), profile))
		kubectl("-n", deploy.Namespace, "rollout", "status", "deployment/sidecarset-operator", "--timeout=180s")
	}
	drain := func(timeout string) error {
		_, err := cluster.Kubectl(t.Context(), "", "drain", "node-0", "--ignore-daemonsets", "--force", "--timeout="+timeout)
		return err
	}
	kubectl("cordon", "-l", "kubernetes.io/hostname!=node-0")
	t.Cleanup(func() {
		if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), "", "uncordon", "-l", "kubernetes.io/hostname"); err != nil {
			t.Error(err)
		}
	})
	install("config/overlays/single-node")
	if pods := kubectl("-n", deploy.Namespace, "get", "pods", "-o", "name"); strings.Count(pods, "pod/") != 1 {
		t.Errorf("the Pods are %q", pods)
	}
	if err := drain(await.Patience.String()); err != nil {
		t.Errorf("single-node: %v", err)
	}
	kubectl("uncordon", "node-0")
	install("config/default")
	await.Eventually(t, "a refused eviction", func(context.Context) error {
		err := drain("3s")
		if err == nil {
			t.Fatal("default: the node was drained")
		}
		if !strings.Contains(err.Error(), "disruption budget") {
			return err
		}
		return nil
	})
}

// The commands that install, change and remove the operator, on nodes that only pretend to run the Pods.
// Each block finds config/default installed; of install.md also what the blocks before have left.
func testPages(t *testing.T) {
	dir := testkit.Checkout(t, deploy.Root())
	testkit.Kubectl(t, cluster, ofCertManager("certificates", "Certificate")+"---"+ofCertManager("issuers", "Issuer"), "apply", "-f", "-")
	if err := cluster.Established(t.Context(), "crd/certificates.cert-manager.io", "crd/issuers.cert-manager.io"); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "docs/*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("pages: %v, %v", pages, err)
	}
	for _, page := range pages {
		for i, commands := range testkit.Blocks(t, page, "sh install") {
			if i == 0 || filepath.Base(page) != "install.md" {
				testkit.Shell(t, cluster, dir, "kubectl apply --server-side --force-conflicts -k config/default")
			}
			commands = strings.ReplaceAll(commands, "pod NAME", "pod $(kubectl -n sidecarset-system get pods -o jsonpath='{.items[0].metadata.name}')")
			testkit.Shell(t, cluster, dir, commands)
			if !strings.Contains(commands, "kubectl delete -k") && !strings.Contains(commands, "kubectl delete namespace") {
				continue
			}
			if err := nothingIsLeft(t.Context()); err != nil {
				t.Errorf("%s: after\n%s%v", page, commands, err)
			}
		}
	}
}

// ofCertManager is a CustomResourceDefinition of cert-manager.
func ofCertManager(plural, kind string) string {
	return strings.NewReplacer("PLURAL", plural, "KIND", kind).Replace(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: PLURAL.cert-manager.io}
spec:
  group: cert-manager.io
  scope: Namespaced
  names: {plural: PLURAL, kind: KIND}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`)
}
