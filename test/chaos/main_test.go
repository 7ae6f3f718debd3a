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

// seconds is how long the short forms take.
var seconds = map[string]int{
	"TestTwoVersionsSideBySide": 130, "TestFaultsOfTheConnectionChangeNoDecision": 118, "TestWithoutReplicasOnlySelectedPodsAreAffected": 70,
	"TestKillingTheLeaderInARolloutKeepsTheBudget": 85, "TestAnAPIServerMayBeRestartedInARollout": 44, "TestTwoLeadersForAMomentKeepTheBudget": 38,
	"TestNoPodBehindALabelIsMissedIfTheWebhookIsCalled": 36, "TestManySidecarSetsBesideNone": 50, "TestCertificatesChangeUnderLoad": 40,
	"TestARestoredEtcdIsNoticedByEveryProcess": 42, "TestNoPodIsMissedOnOneAPIServer": 35, "TestARollingRestartFailsNoPod": 26,
	"TestPodsMayLeaveInARollout": 38, "TestNoPodIsMissedOnTwoAPIServers": 24, "TestGoroutinesAndMemoryStayFlat": 24,
	"TestAddedLatencyOnTheFreshPath": 30, "TestAPodBehindItsSidecarSetNeedsNoList": 24, "TestEtcdMayHang": 24, "TestAnAPIServerMayBeRestarted": 28,
	"TestAddedLatencyOfACreation": 20, "TestSpoiledBundleTakesNoReplicaOut": 18, "TestKillingTheLeaderLeavesWebhooksAlone": 20,
	"TestReadyIsTakenBackWhileCallsAreNotAnswered": 14, "TestForgedReviewsLeaveFewEntries": 12, "TestClockThatDiffersWritesNoCertificate": 12,
	"TestACrashedReplicaRefusesUntilItIsWithdrawn": 20, "TestAPIServersBehindOneAddress": 4,
}

// alone are the tests that use all processors, and in which no Pod may wait for long. The
// other tests wait more than they compute, and do not assert how fast a replica answers: a
// replica may be late, because these tests wait for it where they need to.
var alone = []string{"TestStrangerOnTheNetwork"}

func TestMain(m *testing.M) {
	attackIfAsked()
	options := stand.Options{Full: true, Kwok: true, APIServers: 2, Namespace: true, Seconds: seconds, Alone: alone}
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

// awaitCalls waits until every API server reaches the webhooks: it follows its
// EndpointSlices with a short delay.
func awaitCalls(t *testing.T) {
	t.Helper()
	for i, client := range sets {
		await.Eventually(t, fmt.Sprintf("calls of API server %d", i+1), func(ctx context.Context) error {
			_, err := client.Create(ctx, newSet("probe", "none", podLabels("probe")), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		})
	}
}

// newNamespace makes a namespace in which Pods can be created.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace := testkit.Namespace(t, api, nil)
	testkit.AwaitServiceAccount(t, api, namespace)
	return namespace
}

// podLabels are those of Pods that the SidecarSet selects.
func podLabels(sidecarSet string) map[string]string { return map[string]string{"app": sidecarSet} }

// awaitInjection waits until each replica injects the SidecarSet, and each API
// server calls them for its Pods, so many times in a row.
func awaitInjection(t *testing.T, f *fleet, namespace, sidecarSet string, times int) {
	t.Helper()
	for _, replica := range f.replicas {
		await.Eventually(t, replica.Name+" knows SidecarSet "+sidecarSet, func(ctx context.Context) error {
			return replica.Injects(ctx, sidecarSet, namespace, podLabels(sidecarSet))
		})
	}
	awaitInjected(t, namespace, sidecarSet, times)
}

// awaitInjected waits until each API server has Pods of the SidecarSet injected,
// so many times in a row.
func awaitInjected(t *testing.T, namespace, sidecarSet string, times int) {
	t.Helper()
	await.Eventually(t, "Pods with SidecarSet "+sidecarSet, func(ctx context.Context) error {
		for i := range times * len(clients) {
			if err := probe(ctx, clients[i%len(clients)], namespace, sidecarSet, ""); err != nil {
				return err
			}
		}
		return nil
	})
}

// probe makes no Pod, but would have it injected: with that image, if any.
func probe(ctx context.Context, client kubernetes.Interface, namespace, sidecarSet, image string) error {
	options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	pod, err := client.CoreV1().Pods(namespace).Create(ctx, NewPod(podLabels(sidecarSet)), options)
	if err != nil {
		return err
	}
	if !Injected(pod, []string{sidecarSet}) {
		return fmt.Errorf("SidecarSet %s is not injected", sidecarSet)
	}
	if got := pod.Spec.Containers[1].Image; image != "" && got != image {
		return fmt.Errorf("SidecarSet %s is injected with %s, want %s", sidecarSet, got, image)
	}
	return nil
}
