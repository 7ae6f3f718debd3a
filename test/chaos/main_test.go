package chaos

import (
	"context"
	"fmt"
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

var (
	cluster  *stand.Cluster
	operator *deploy.Operator
	api      client.Client               // of the first API server
	clients  []kubernetes.Interface      // of the administrator, one for each API server
	sets     []dynamic.ResourceInterface // SidecarSets, likewise
)

func TestMain(m *testing.M) {
	options := stand.Options{APIServers: 2, Namespace: true, Processes: 3}
	if os.Getenv("K8S_VERSION") == "" { // an earlier version does not know these gates
		options.Args = []string{newGates}
	}
	os.Exit(stand.Main(m, options, begin))
}

// begin installs the operator. Every test starts replicas of its own.
func begin(ctx context.Context, c *stand.Cluster) error {
	cluster = c
	for i := range cluster.APIServers {
		config := cluster.ConfigFor(i)
		config.WarningHandlerWithContext = warningHandler{}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		untyped, err := dynamic.NewForConfig(config)
		if err != nil {
			return err
		}
		clients = append(clients, client)
		sets = append(sets, untyped.Resource(appsv1beta1.GroupVersion.WithResource("sidecarsets")))
	}
	var err error
	if api, err = testkit.NewClient(cluster); err != nil {
		return err
	}
	operator, err = deploy.Install(ctx, cluster)
	return err
}

// awaitCalls waits until every API server reaches the webhooks: it follows its
// EndpointSlices with a short delay.
func awaitCalls(t *testing.T) {
	t.Helper()
	for i, client := range sets {
		await.Eventually(t, fmt.Sprintf("calls of API server %d", i+1), func(ctx context.Context) error {
			_, err := client.Create(ctx, testkit.NewSet("probe", "none", testkit.AppLabels("probe")), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		})
	}
}

// awaitInjection waits until each replica injects the SidecarSet, and each API
// server calls them for its Pods, so many times in a row.
func awaitInjection(t *testing.T, f *fleet, namespace, sidecarSet string, times int) {
	t.Helper()
	for _, replica := range f.replicas {
		await.Eventually(t, replica.Name+" knows SidecarSet "+sidecarSet, func(ctx context.Context) error {
			return replica.Injects(ctx, sidecarSet, namespace, testkit.AppLabels(sidecarSet))
		})
	}
	awaitInjected(t, namespace, sidecarSet, times)
}

// awaitInjected waits until each API server has Pods of the SidecarSet injected,
// so many times in a row.
func awaitInjected(t *testing.T, namespace, sidecarSet string, times int) {
	t.Helper()
	await.Eventually(t, "Pods with SidecarSet "+sidecarSet, func(ctx context.Context) error {
		return injects(ctx, namespace, sidecarSet, "", times)
	})
}

// injects returns an error unless each API server has Pods of the SidecarSet injected, so many
// times in a row: with that image, if any.
func injects(ctx context.Context, namespace, sidecarSet, image string, times int) error {
	for i := range times * len(clients) {
		if err := testkit.TryPod(ctx, clients[i%len(clients)], namespace, sidecarSet, image); err != nil {
			return err
		}
	}
	return nil
}
