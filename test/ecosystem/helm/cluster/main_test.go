// Package cluster installs the chart on a control plane. There is no node, so the Pods of its
// Deployments stay pending. Replicas run as processes.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/ecosystem/helm"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

var (
	cluster *stand.Cluster
	api     client.WithWatch
)

func TestMain(m *testing.M) {
	os.Exit(stand.Main(m, stand.Options{Full: true, Namespace: true}, func(_ context.Context, c *stand.Cluster) (err error) {
		cluster = c
		api, err = testkit.NewClient(cluster)
		return err
	}))
}

// newHelm returns Helm in a namespace, and skips the test if replicas cannot be called.
func newHelm(t *testing.T, namespace string) *helm.Client {
	t.Helper()
	if !stand.Namespace() {
		t.Skip("SKIP: replicas behind a Service need a network namespace, which cannot be made here")
	}
	c, err := helm.NewClient(cluster.Kubeconfig, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// replica starts a replica, whose log must have no panic when the test ends.
func replica(t *testing.T, o *deploy.Operator, number int, args ...string) *deploy.Replica {
	t.Helper()
	r, err := o.StartReplicaUnready(t.Context(), number, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Process.Stop()
		r.CheckLog(t)
	})
	if err := r.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(args, " "), "--role=controller") {
		if err := o.AddEndpoint(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// newNamespace makes a namespace in which Pods can be created.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace := testkit.Namespace(t, api, nil)
	testkit.AwaitServiceAccount(t, api, namespace)
	return namespace
}

// applySidecarSet makes a SidecarSet of this name for Pods of the namespace, and waits until it is Ready.
func applySidecarSet(t *testing.T, name, namespace string) {
	t.Helper()
	set := testkit.NewPatientSet(name, namespace)
	await.Eventually(t, "a SidecarSet", func(ctx context.Context) error { return api.Create(ctx, set.DeepCopy()) })
	t.Cleanup(func() {
		if err := api.Delete(context.WithoutCancel(t.Context()), set); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	testkit.AwaitReady(t, api, name)
}

// clean removes what an installation leaves: the definition, and the namespace.
func clean(t *testing.T, namespace string) {
	t.Helper()
	testkit.Kubectl(t, cluster, "", "delete", "crd", deploy.CRD, "--ignore-not-found", "--timeout="+await.Patience.String())
	testkit.Kubectl(t, cluster, "", "delete", "namespace", namespace, "--ignore-not-found", "--timeout="+await.Patience.String())
}

// documents parses manifests.
func documents(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var found []*unstructured.Unstructured
	for part := range strings.SplitSeq("\n"+text, "\n---") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(part), &object.Object); err != nil {
			t.Fatal(err)
		}
		if len(object.Object) > 0 {
			found = append(found, object)
		}
	}
	return found
}

// stored returns the stored objects of manifests without status, versions and managers, as JSON by name.
func stored(t *testing.T, manifests []*unstructured.Unstructured) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, object := range manifests {
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(object.GroupVersionKind())
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(object), live); err != nil {
			t.Fatal(err)
		}
		found[object.GetKind()+" "+object.GetNamespace()+" "+object.GetName()] = bare(t, live)
	}
	return found
}

func bare(t *testing.T, object *unstructured.Unstructured) string {
	t.Helper()
	copied := object.DeepCopy()
	copied.SetManagedFields(nil)
	copied.SetResourceVersion("")
	delete(copied.Object, "status")
	text, err := json.MarshalIndent(copied, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// shards are the objects for Pod webhooks.
func shards(t *testing.T) []unstructured.Unstructured {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("admissionregistration.k8s.io/v1")
	list.SetKind("MutatingWebhookConfigurationList")
	if err := api.List(t.Context(), list, client.HasLabels{"sidecarset.io/pod-webhooks"}); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// serials of probes. The leader writes one more if a write has timed out that the API server had stored.
var serials = regexp.MustCompile(`"values":\[("\d+",?)+\]`)

// webhooks are the Pod webhooks of all shards, by shard, without serials.
func webhooks(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, shard := range shards(t) {
		if webhooks, _, _ := unstructured.NestedSlice(shard.Object, "webhooks"); len(webhooks) > 0 {
			text, err := json.Marshal(webhooks)
			if err != nil {
				t.Fatal(err)
			}
			found[shard.GetName()] = serials.ReplaceAllString(string(text), "")
		}
	}
	return found
}

// nothingRefusesPods fails the test if there is a webhook configuration of ours, and waits until a Pod that was selected
// can be created.
func nothingRefusesPods(t *testing.T, namespace, sidecarSet string) {
	t.Helper()
	left := testkit.Kubectl(t, cluster, "", "get", "mutatingwebhookconfigurations,validatingwebhookconfigurations", "-o", "name")
	if strings.Contains(left, "sidecarset") {
		t.Errorf("there are %s", left)
	}
	await.Eventually(t, "a Pod that was selected", func(ctx context.Context) error {
		pod := testkit.NewPod(testkit.AppLabels(sidecarSet))
		pod.Namespace = namespace
		return api.Create(ctx, pod, client.DryRunAll)
	})
}

// previousChart is the chart as it was before its latest change in the history. It is the chart of this checkout if the history
// has no other.
func previousChart(t *testing.T) string {
	t.Helper()
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", deploy.Root()}, args...)...).Output()
		return string(out), err
	}
	commits, err := git("rev-list", "-n", "50", "HEAD", "--", "charts/sidecarset")
	if err != nil {
		t.Logf("there is no history: %v", err)
		return helm.Directory()
	}
	for commit := range strings.FieldsSeq(commits) {
		_, err := git("diff", "--quiet", commit, "--", "charts/sidecarset/templates", "charts/sidecarset/files", "charts/sidecarset/values.yaml")
		var changed *exec.ExitError
		if !errors.As(err, &changed) {
			continue
		}
		dir := t.TempDir()
		archive := exec.CommandContext(t.Context(), "sh", "-c", `git -C "$1" archive "$2" charts/sidecarset | tar -x -C "$3"`, "sh", deploy.Root(), commit, dir)
		if out, err := archive.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Logf("the chart of before is that of %s", commit)
		return filepath.Join(dir, "charts/sidecarset")
	}
	t.Log("the history has one chart only")
	return helm.Directory()
}

// changes says in which objects two maps differ.
func changes(before, after map[string]string) (found []string) {
	for name := range maps.All(before) {
		if after[name] != before[name] {
			found = append(found, fmt.Sprintf("%s: was %s\nand is %s", name, before[name], after[name]))
		}
	}
	return found
}
