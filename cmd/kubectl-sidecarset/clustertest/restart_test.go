package clustertest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/testkit"
)

// workload is a manifest of a workload of Pods that the SidecarSet of the namespace selects.
func workload(kind, name, more string) string {
	return strings.NewReplacer("KIND", kind, "NAME", name, "MORE", more).Replace(`
apiVersion: apps/v1
kind: KIND
metadata: {name: NAME, namespace: NS}
spec:
  selector: {matchLabels: {app: web, of: NAME}}
  template:
    metadata: {labels: {app: web, of: NAME}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: app, image: "example.com/app:v1"}]
MORE`)
}

const bare = `
apiVersion: v1
kind: Pod
metadata: {name: bare, namespace: NS, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: "example.com/app:v1"}]
`

// withEnv is a change that no running Pod can get.
func withEnv(manifest, image string) string {
	return strings.Replace(manifest, `log-agent:v1"}`, image+`", env: [{name: A, value: b}]}`, 1)
}

// Pods that are older than the SidecarSet, and then Pods of another revision, are replaced by their
// workloads; bare Pods are named.
func TestRestartReplacesThePodsOfEachKind(t *testing.T) {
	t.Parallel()
	name := selectedNamespace(t)
	apply(t, name, workload("Deployment", "web", "  replicas: 2\n")+"---"+workload("StatefulSet", "db", "  replicas: 2\n  serviceName: db\n")+"---"+workload("DaemonSet", "agent", "")+"---"+
		workload("DaemonSet", "manual", "  updateStrategy: {type: OnDelete}\n")+"---"+bare)
	for _, of := range []string{"deployment/web", "statefulset/db", "daemonset/agent"} {
		testkit.Kubectl(t, cluster, "", "-n", name, "rollout", "status", of, "--timeout=180s")
	}
	testkit.Kubectl(t, cluster, "", "-n", name, "wait", "--for=condition=Ready", "pods", "--all", "--timeout=180s")
	apply(t, name, sidecarSet)
	testkit.AwaitReady(t, api, name)
	testkit.AwaitCounters(t, api, name, testkit.Counters{Uninjected: 7})

	wants(t, []string{"status", name}, "7 OlderThanSidecarSet", "kubectl sidecarset rollout restart "+name)
	list := []string{"Deployment " + name + "/web: 2 Pods (2 OlderThanSidecarSet)", "StatefulSet " + name + "/db: 2 Pods", "DaemonSet " + name + "/agent: 1 Pod",
		"DaemonSet " + name + "/manual: 1 Pod (1 OlderThanSidecarSet): its updateStrategy is OnDelete", name + "/bare: no controller would replace it"}
	wants(t, []string{"rollout", "restart", name, "--dry-run"}, list...)
	testkit.AwaitCounters(t, api, name, testkit.Counters{Uninjected: 7})

	wants(t, []string{"rollout", "restart", name}, append(list, "evicted Pod", "restarted", "3 of 3 workloads are done")...)
	testkit.AwaitCounters(t, api, name, testkit.Counters{Matched: 5, Updated: 5, Ready: 5, UpdatedReady: 5, Uninjected: 2})
	refuses(t, []string{"rollout", "restart", name}, "nothing was restarted, although Pods need it")

	wants(t, []string{"rollout", "restart", name, "--evict"}, "DaemonSet "+name+"/manual: 1 Pod (1 OlderThanSidecarSet), one by one", "1 of 1 workloads are done")
	testkit.AwaitCounters(t, api, name, testkit.Counters{Matched: 6, Updated: 6, Ready: 6, UpdatedReady: 6, Uninjected: 1})

	apply(t, name, withEnv(sidecarSet, "log-agent:v2"))
	testkit.Await(t, api, name, "the blocked Pods", func(set *appsv1beta1.SidecarSet) error {
		if blocked := set.Status.BlockedPods; len(blocked) != 1 || blocked[0].Pods != 6 {
			return fmt.Errorf("%v", blocked)
		}
		return testkit.Ready(set)
	})
	wants(t, []string{"rollout", "restart", name}, "(2 ImmutableFieldChanged)", "3 of 3 workloads are done")
	testkit.AwaitCounters(t, api, name, testkit.Counters{Matched: 6, Updated: 5, Ready: 6, UpdatedReady: 5, Uninjected: 1})
}

// Rights are asked for first.
func TestRestartIsRefused(t *testing.T) {
	t.Parallel()
	name := app(t, 1, "")
	apply(t, name, withEnv(sidecarSet, "log-agent:v2"))
	testkit.AwaitObserved(t, api, name)
	testkit.AwaitReady(t, api, name)

	// Who may only read is told what is missing.
	reader := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"get", "list"}}}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}},
	}
	for _, object := range []client.Object{reader, binding} {
		if err := api.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = api.Delete(context.WithoutCancel(t.Context()), object) })
	}
	refuses(t, []string{"rollout", "restart", name, "--as=" + name}, "nothing was restarted", "create pods/eviction in namespace "+name, "patch deployments.apps in namespace "+name)
}
