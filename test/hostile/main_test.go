// Package hostile attacks the operator on a real control plane as an unauthenticated client on the network can:
// with malformed requests, large bodies, headers and bodies that do not end, many connections,
// and reviews that no API server has sent. Its tests keep the processors busy, so that a test
// beside them would wait.
package hostile

import (
	"context"
	"fmt"
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

var (
	operator *deploy.Operator
	replicas []*deploy.Replica // behind the Service
	api      client.Client
	clients  []kubernetes.Interface // one for each API server
)

func TestMain(m *testing.M) {
	attackIfAsked()
	os.Exit(stand.Main(m, stand.Options{Full: true, APIServers: 2, Namespace: true}, begin))
}

// begin installs the operator and waits until the API server reaches its webhooks.
func begin(ctx context.Context, c *stand.Cluster) (err error) {
	for i := range c.APIServers {
		client, err := kubernetes.NewForConfig(c.ConfigFor(i))
		if err != nil {
			return err
		}
		clients = append(clients, client)
	}
	api, operator, replicas, err = testkit.Begin(ctx, c)
	return err
}

// apply creates a SidecarSet for a new namespace, and returns the namespace when its Pods get
// the sidecar through each API server.
func apply(t *testing.T, name string) (namespace string) {
	t.Helper()
	namespace = testkit.Namespace(t, api, nil)
	testkit.AwaitServiceAccount(t, api, namespace)
	applyIn(t, namespace, name)
	return namespace
}

func applyIn(t *testing.T, namespace, name string) {
	t.Helper()
	set := testkit.NewPatientSet(name, namespace)
	if err := api.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Delete(context.WithoutCancel(t.Context()), set); err != nil {
			t.Error(err)
		}
	})
	testkit.AwaitReady(t, api, name)
	await.Eventually(t, "Pods with SidecarSet "+name, func(ctx context.Context) error {
		for i := range 3 * len(clients) {
			if err := testkit.TryPod(ctx, clients[i%len(clients)], namespace, name, ""); err != nil {
				return err
			}
		}
		return nil
	})
}

// createPod creates a Pod with the labels that a SidecarSet of this name would select.
func createPod(ctx context.Context, namespace, app string) error {
	pod, err := clients[0].CoreV1().Pods(namespace).Create(ctx, testkit.NewPod(testkit.AppLabels(app)), metav1.CreateOptions{})
	if err == nil && !testkit.Injected(pod, nil) {
		err = fmt.Errorf("a Pod of %s has the containers %v", app, testkit.ContainerNames(pod.Spec.Containers))
	}
	return err
}
