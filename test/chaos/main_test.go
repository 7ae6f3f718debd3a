package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
)

var (
	cluster  *stand.Cluster
	operator *deploy.Operator
	clients  []kubernetes.Interface // of the administrator, one for each API server
)

func TestMain(m *testing.M) {
	options := stand.Options{Full: true, Kwok: true, APIServers: 2, Namespace: true}
	os.Exit(stand.Main(m, options, func(c *stand.Cluster) {
		cluster = c
		if err := begin(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "chaos:", err)
			os.Exit(1) // the cluster ends with this process
		}
	}))
}

// begin installs the operator. Every test starts replicas of its own.
func begin(ctx context.Context) error {
	for i := range cluster.APIServers {
		client, err := kubernetes.NewForConfig(cluster.ConfigFor(i))
		if err != nil {
			return err
		}
		clients = append(clients, client)
	}
	var err error
	operator, err = deploy.Install(ctx, cluster)
	return err
}

// scaled is how much a test does: short, or long with CHAOS=long.
func scaled[T any](short, long T) T {
	if os.Getenv("CHAOS") == "long" {
		return long
	}
	return short
}

// report prints figures in one line that is easy to find.
func report(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Logf("FIGURES %s: %s", t.Name(), fmt.Sprintf(format, args...))
}

// startReplicas starts replicas, numbered from 1, at the same time, and returns
// when the API servers call them for Pods. They are stopped after the test, by
// when it may have replaced some. args are flags.
func startReplicas(t *testing.T, count int, args ...string) []*deploy.Replica {
	t.Helper()
	operator.NeedReplicas(t)
	replicas := make([]*deploy.Replica, count)
	t.Cleanup(func() { stopReplicas(t, replicas) })
	for i := range replicas {
		var err error
		if replicas[i], err = operator.StartReplicaUnready(t.Context(), i+1, args...); err != nil {
			t.Fatal(err)
		}
	}
	for _, replica := range replicas {
		if err := errors.Join(replica.AwaitReady(t.Context()), operator.AddEndpoint(t.Context(), replica)); err != nil {
			t.Fatal(err)
		}
	}
	awaitCalls(t)
	return replicas
}

// stopReplicas stops what is there, and holds it to never having panicked.
func stopReplicas(t *testing.T, replicas []*deploy.Replica) {
	t.Helper()
	var stopping sync.WaitGroup
	for _, replica := range replicas {
		if replica == nil {
			continue
		}
		stopping.Go(func() {
			if err := replica.Stop(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
			checkLog(t, replica)
		})
	}
	stopping.Wait()
}

// checkLog fails the test if the replica has panicked, and shows the end of its
// log if the test has failed.
func checkLog(t *testing.T, replica *deploy.Replica) {
	t.Helper()
	for _, sign := range []string{"panic: ", "Observed a panic", "panic serving", "fatal error: "} {
		if strings.Contains(replica.Log(), sign) {
			t.Errorf("%s panicked:\n%s", replica.Name, replica.Log())
		}
	}
	if t.Failed() {
		t.Logf("the end of the log of %s:\n%s", replica.Name, replica.Tail(30))
	}
}

// awaitCalls waits until every API server reaches the webhooks: it follows its
// EndpointSlices with a short delay.
func awaitCalls(t *testing.T) {
	t.Helper()
	for i, client := range clients {
		stand.Eventually(t, 20*time.Second, fmt.Sprintf("calls of API server %d", i+1), func(ctx context.Context) error {
			_, err := client.CoreV1().Pods("default").Create(ctx, NewPod(nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		})
	}
}

// newNamespace makes a namespace of the test's own and deletes it afterwards.
func newNamespace(t *testing.T) string {
	t.Helper()
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "chaos-"}}
	object, err := clients[0].CoreV1().Namespaces().Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := clients[0].CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), object.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return object.Name
}

// sidecarSet is one for the Pods with the label app=NAME of the namespace NS.
const sidecarSet = `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: NAME}
spec:
  selector: {matchLabels: {app: NAME}}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
  updateStrategy: {type: NotUpdate}
  containers:
  - {name: NAME, image: "example.com/sidecar:v1", podInjectPolicy: AfterAppContainer}
`

// podLabels are those of Pods that the SidecarSet selects.
func podLabels(sidecarSet string) map[string]string { return map[string]string{"app": sidecarSet} }

// applySidecarSet makes a SidecarSet that adds a container of its own name to
// Pods with its labels, and deletes it after the test.
func applySidecarSet(t *testing.T, namespace, name string) {
	t.Helper()
	manifest := strings.NewReplacer("NAME", name, "NS", namespace).Replace(sidecarSet)
	kubectl(t, manifest, "apply", "-f", "-")
	t.Cleanup(func() {
		if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), "", "delete", "sidecarset", name, "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
}

// awaitInjection waits until each of the replicas injects the SidecarSet.
func awaitInjection(t *testing.T, replicas []*deploy.Replica, namespace, sidecarSet string) {
	t.Helper()
	for _, replica := range replicas {
		stand.Eventually(t, 20*time.Second, replica.Name+" knows SidecarSet "+sidecarSet, func(ctx context.Context) error {
			return replica.Injects(ctx, sidecarSet, namespace, podLabels(sidecarSet))
		})
	}
}

// kubectl runs kubectl and fails the test if it fails.
func kubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	out, err := cluster.Kubectl(t.Context(), stdin, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
