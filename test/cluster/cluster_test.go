package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

const sidecarSet = `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: NS, annotations: {sidecarset.io/timeout-seconds: "30"}}
spec:
  selector: {matchLabels: {sidecars: "yes"}}
  namespaceSelector: {matchLabels: {for: NS}}
  updateStrategy: {type: NotUpdate}
  initContainers:
  - {name: proxy, image: "example.com/proxy:v1", restartPolicy: Always}
  containers:
  - {name: log-agent, image: "example.com/log-agent:v1", podInjectPolicy: AfterAppContainer}
`

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: NS}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: NAME}}
  template:
    metadata:
      labels: {app: NAME, sidecars: "LABEL"}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: app, image: "example.com/app:v1"}]
`

func newDeployment(name string, replicas int, label string) string {
	return strings.NewReplacer("NAME", name, "REPLICAS", fmt.Sprint(replicas), "LABEL", label).Replace(deployment)
}

// awaitCounters waits for "matched updated ready" of the status, and for uninjectedPods. This
// includes the time until all nodes and Pods of a test are there.
func awaitCounters(t *testing.T, name string, matched, updated, ready, uninjected int) {
	t.Helper()
	want := fmt.Sprintf("%d %d %d %d", matched, updated, ready, uninjected)
	await.Within(t, 2*await.Patience, "the counters of SidecarSet "+name, func(ctx context.Context) error {
		got, err := cluster.Kubectl(ctx, "", "get", "sidecarset", name, "-o",
			"go-template={{.status.matchedPods}} {{.status.updatedPods}} {{.status.readyPods}} {{or .status.uninjectedPods 0}}")
		if err == nil && got != want {
			err = fmt.Errorf("matched, updated, ready, uninjected: %s, want %s", got, want)
		}
		return err
	})
}

// selectedNamespace makes a namespace that the SidecarSet of the same name selects.
func selectedNamespace(t *testing.T) string {
	t.Helper()
	namespace := testkit.Namespace(t, api, nil)
	testkit.AwaitServiceAccount(t, api, namespace)
	testkit.Kubectl(t, cluster, "", "label", "namespace", namespace, "for="+namespace)
	return namespace
}

func TestTheReadmesCommandIsACompleteInstall(t *testing.T) {
	if got := strings.Count(installed, "pod/sidecarset-operator-"); got != 2 {
		t.Errorf("the Deployment has %d Pods, want 2: %s", got, installed)
	}
}

func TestADeploymentsPodsAreInjected(t *testing.T) {
	namespace := selectedNamespace(t)
	apply(t, namespace, sidecarSet)
	testkit.AwaitReady(t, api, namespace)
	apply(t, namespace, newDeployment("labelled", 5, "yes")+"---"+newDeployment("plain", 1, "no"))
	awaitCounters(t, namespace, 5, 5, 5, 0)

	lines := strings.Split(testkit.Kubectl(t, cluster, "", "get", "sidecarset", namespace), "\n")
	if got, want := strings.Join(strings.Fields(lines[0]), " "), "NAME MATCHED UPDATED READY INJECTION ROLLOUT AGE"; got != want {
		t.Errorf("columns are %q, want %q", got, want)
	}
	if got, want := strings.Fields(lines[1])[:5], []string{namespace, "5", "5", "5", "Injecting"}; strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("row is %q, want %q", got, want)
	}
	for app, want := range map[string]string{"labelled": "proxy/app log-agent", "plain": "/app"} {
		got := testkit.Kubectl(t, cluster, "", "-n", namespace, "get", "pods", "-l", "app="+app, "-o",
			"jsonpath={.items[0].spec.initContainers[*].name}/{.items[0].spec.containers[*].name}")
		if got != want {
			t.Errorf("a Pod of %s has the containers %q, want %q", app, got, want)
		}
	}
}

// Two hundred Pods go through everything that changes a counter, and the operator is restarted
// meanwhile. At the end the counters are right.
func TestStatusFollowsPodsThroughARestart(t *testing.T) {
	namespace := selectedNamespace(t)
	apply(t, namespace, sidecarSet)
	testkit.AwaitReady(t, api, namespace)
	apply(t, namespace, newDeployment("many", 200, "yes"))
	awaitCounters(t, namespace, 200, 200, 200, 0)

	pods := strings.Fields(testkit.Kubectl(t, cluster, "", "-n", namespace, "get", "pods", "-o", "name"))
	if len(pods) != 200 {
		t.Fatalf("there are %d Pods", len(pods))
	}
	in := func(args ...string) { testkit.Kubectl(t, cluster, "", append([]string{"-n", namespace}, args...)...) }

	in(append(append([]string{"label", "--overwrite"}, pods[:20]...), "sidecars=no")...)
	awaitCounters(t, namespace, 180, 180, 180, 0)

	testkit.Kubectl(t, cluster, "", "label", "--overwrite", "namespace", namespace, "for=none")
	awaitCounters(t, namespace, 0, 0, 0, 0)

	// While no replica watches, Pods are deleted, and the Namespace is selected again.
	for _, replica := range replicas {
		replica.Kill()
	}
	in(append([]string{"delete", "--force", "--grace-period=0", "--wait=false"}, pods[20:30]...)...)
	in("scale", "deployment", "many", "--replicas=0")
	await.Eventually(t, "scaling down", func(ctx context.Context) error {
		out, err := cluster.Kubectl(ctx, "", "-n", namespace, "get", "pods", "-o", "name")
		if err == nil && out != "" {
			err = fmt.Errorf("%d Pods are left", strings.Count(out, "\n"))
		}
		return err
	})
	for i, replica := range replicas {
		started, err := operator.StartReplica(t.Context(), replica.Number)
		if err != nil {
			t.Fatal(err)
		}
		replicas[i] = started
	}
	testkit.Kubectl(t, cluster, "", "label", "--overwrite", "namespace", namespace, "for="+namespace)
	testkit.AwaitReady(t, api, namespace)
	in("scale", "deployment", "many", "--replicas=50")
	awaitCounters(t, namespace, 50, 50, 50, 0)

	// After the SidecarSet has changed, its old Pods count as outdated.
	testkit.Kubectl(t, cluster, "", "patch", "sidecarset", namespace, "--type=json", "-p", `[{"op": "replace", "path": "/spec/containers/0/image", "value": "example.com/log-agent:v2"}]`)
	awaitCounters(t, namespace, 50, 0, 50, 0)

	in("delete", "deployment", "many")
	awaitCounters(t, namespace, 0, 0, 0, 0)
}

// Stopping one replica of two, gracefully, fails no creation of a Pod.
func TestAReplicaMayStopAtAnyTime(t *testing.T) {
	operator.NeedReplicas(t)
	namespace := selectedNamespace(t)
	apply(t, namespace, sidecarSet)
	testkit.AwaitReady(t, api, namespace)

	// This replica answers until the API server has surely seen that its endpoint was removed.
	if err := replicas[1].Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	draining, err := operator.StartReplica(t.Context(), replicas[1].Number, "--drain-grace=5s")
	if err != nil {
		t.Fatal(err)
	}
	replicas[1] = draining
	stopped := make(chan error, 1)
	go func() { stopped <- draining.Stop(t.Context()) }()
	for i, done := 0, false; !done || i < 20; i++ {
		select {
		case err := <-stopped:
			if err != nil {
				t.Error(err)
			}
			done = true
		default:
		}
		name := fmt.Sprintf("p-%d", i)
		out, err := cluster.Kubectl(t.Context(), "", "-n", namespace, "run", name, "--image=example.com/app:v1", "--labels=sidecars=yes", "-o", "jsonpath={.spec.containers[*].name}")
		if err != nil {
			t.Fatalf("Pod %d: %v", i, err)
		}
		if want := name + " log-agent"; out != want {
			t.Fatalf("Pod %d has the containers %q, want %q", i, out, want)
		}
	}
	started, err := operator.StartReplica(t.Context(), replicas[1].Number)
	if err != nil {
		t.Fatal(err)
	}
	replicas[1] = started
}

// While no replica runs, Pods that a SidecarSet selects are refused with a message that names
// the webhook: that is failurePolicy Fail. Other objects can be created. Above all the
// operator's own Pods can be created, because otherwise no replica could ever run again.
func TestWithoutReplicasOnlySelectedPodsAreRefused(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	apply(t, namespace, strings.Replace(sidecarSet, "  namespaceSelector: {matchLabels: {for: NS}}\n", "", 1))
	testkit.AwaitReady(t, api, namespace)
	for _, replica := range replicas {
		replica.Kill()
	}
	defer func() {
		for i, replica := range replicas {
			started, err := operator.StartReplica(t.Context(), replica.Number)
			if err != nil {
				t.Fatal(err)
			}
			replicas[i] = started
		}
	}()
	_, err := cluster.Kubectl(t.Context(), "", "-n", "default", "run", "refused", "--image=example.com/app:v1", "--dry-run=server", "--labels=sidecars=yes")
	if err == nil || !strings.Contains(err.Error(), ".pods.sidecarset.io") {
		t.Errorf("a selected Pod in default: %v", err)
	}
	if _, err := cluster.Kubectl(t.Context(), "", "-n", "default", "run", "plain", "--image=example.com/app:v1", "--dry-run=server"); err != nil {
		t.Errorf("another Pod in default: %v", err)
	}
	for _, namespace := range []string{"kube-system", deploy.Namespace} {
		const restricted = `{"spec":{"securityContext":{"runAsNonRoot":true,"runAsUser":1,"seccompProfile":{"type":"RuntimeDefault"}},"containers":[{"name":"own","image":"x","securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}}]}}`
		if _, err := cluster.Kubectl(t.Context(), "", "-n", namespace, "run", "own", "--image=x", "--dry-run=server", "--labels=sidecars=yes", "--overrides="+restricted); err != nil {
			t.Errorf("a Pod in %s: %v", namespace, err)
		}
	}
}
