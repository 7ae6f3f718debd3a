package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/await"
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

// Pods go through everything that changes a counter, and the operator is restarted meanwhile. At
// the end the counters are right.
func TestStatusFollowsPodsThroughARestart(t *testing.T) {
	namespace := selectedNamespace(t)
	apply(t, namespace, sidecarSet)
	testkit.AwaitReady(t, api, namespace)
	apply(t, namespace, newDeployment("many", 60, "yes"))
	awaitCounters(t, namespace, 60, 60, 60, 0)
	pods := strings.Fields(testkit.Kubectl(t, cluster, "", "-n", namespace, "get", "pods", "-o", "name"))
	in := func(args ...string) { testkit.Kubectl(t, cluster, "", append([]string{"-n", namespace}, args...)...) }

	in(append(append([]string{"label", "--overwrite"}, pods[:10]...), "sidecars=no")...)
	awaitCounters(t, namespace, 50, 50, 50, 0)
	testkit.Kubectl(t, cluster, "", "label", "--overwrite", "namespace", namespace, "for=none")
	awaitCounters(t, namespace, 0, 0, 0, 0)

	// While no replica watches, Pods are deleted, and the Namespace is selected again.
	crash(t)
	in(append([]string{"delete", "--force", "--grace-period=0", "--wait=false"}, pods[10:20]...)...)
	in("scale", "deployment", "many", "--replicas=0")
	in("wait", "--for=delete", "pods", "--all", "--timeout="+await.Patience.String())
	restart(t)
	testkit.Kubectl(t, cluster, "", "label", "--overwrite", "namespace", namespace, "for="+namespace)
	testkit.AwaitReady(t, api, namespace)
	in("scale", "deployment", "many", "--replicas=20")
	awaitCounters(t, namespace, 20, 20, 20, 0)

	// After the SidecarSet has changed, its old Pods count as outdated.
	testkit.Kubectl(t, cluster, "", "patch", "sidecarset", namespace, "--type=json", "-p", `[{"op": "replace", "path": "/spec/containers/0/image", "value": "example.com/log-agent:v2"}]`)
	awaitCounters(t, namespace, 20, 0, 20, 0)
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
