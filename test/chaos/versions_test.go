package chaos

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// previousOperator is the environment variable with the path of an operator that was built
// from an earlier commit, which make chaos builds.
const previousOperator = "OPERATOR_PREVIOUS"

// While a version is rolled out or rolled back, replicas of two versions run side by side,
// with the manifests of the newer one. Pods are created all the time, and SidecarSets are
// applied at every step. Whichever version leads, no Pod is missed, and the two versions do
// not undo each other's writes.
func TestTwoVersionsSideBySide(t *testing.T) {
	previous := os.Getenv(previousOperator)
	if previous == "" {
		t.Skip("SKIP: there is no operator of an earlier commit; make chaos builds one where the history of the repository is there")
	}
	quick, err := deploy.QuickProgram()
	if err != nil {
		t.Fatal(err)
	}
	programs := map[string]string{"operator-1": previous, "operator-2": previous}
	// The quick one is used because the earlier version leaves a Secret that the new one writes again.
	amendOperator(t, func(c *stand.Command) { c.Path = programs[c.Name] })
	t.Cleanup(func() { forgetCAs(t) })
	publishAPIServers(t) // so that the operator waits for both
	f := startReplicas(t, 2, "--drain-grace=5s")
	leader := f.awaitLeader(t)
	namespace := testkit.Namespace(t, api, nil)
	applySidecarSet(t, namespace, "versions")
	testkit.AwaitReady(t, api, "versions")
	awaitInjected(t, namespace, "versions", 3)

	load := testkit.Load{Clients: clients, Namespace: namespace, Labels: testkit.AppLabels("versions"), Sidecars: []string{"versions"}, Rate: 20, DryRun: testkit.Scaled(true, false)}
	running := load.Start(t.Context())
	follower := f.replicas[1-leader]
	programs[follower.Process.Name] = quick
	if err := f.restart(t, 1-leader); err != nil {
		t.Fatal(err)
	}
	for step, name := range []string{"old leads, new beside it", "new leads, old beside it", "old leads again, new beside it"} {
		if step > 0 { // the leader is started again when the other one leads
			old := f.replicas[leader]
			if err := old.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.awaitAnotherLeader(t, old)
			if err := f.start(t, leader); err != nil {
				t.Fatal(err)
			}
			leader = 1 - leader
		}
		checkVersions(t, namespace, step, name)
	}
	figures := running.Stop()
	testkit.Report(t, "%s", &figures)
	check(t, figures)
}

// checkVersions applies SidecarSets, and looks at Pods directly behind them and after they are
// Ready. Then it changes nothing for a while.
func checkVersions(t *testing.T, namespace string, step int, name string) {
	t.Helper()
	pods := watchMisses(t)
	const count = 3
	for i := range count {
		app := fmt.Sprintf("versions-%d-%d", step, i)
		how, err := create(t, sets[i%len(sets)], testkit.NewPatientSet(app, namespace))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		pod, err := clients[i%len(clients)].CoreV1().Pods(namespace).Create(t.Context(), testkit.NewPod(testkit.AppLabels(app)), metav1.CreateOptions{})
		if err != nil {
			t.Errorf("%s: a Pod directly behind %s: %v", name, app, err)
		} else {
			pods.add(pod, how, app)
		}
		testkit.AwaitReady(t, api, app)
		if err := injects(t.Context(), namespace, app, "", 1); err != nil {
			t.Errorf("%s: %s is ready: %v", name, app, err)
		}
	}
	pods.check(t)
	testkit.Report(t, "%s: sidecarsets=%d %s quiet-after=%s", name, count, pods, awaitQuiet(t, name).Round(time.Second))
}

// awaitQuiet waits for 4 s in which nothing writes a shard object, and returns how long it
// took until these 4 s began. Two versions that undo each other's writes never stop writing.
func awaitQuiet(t *testing.T, name string) (took time.Duration) {
	t.Helper()
	begin := time.Now()
	await.Eventually(t, name+": no writes of shard objects", func(ctx context.Context) error {
		took = time.Since(begin)
		before, err := objectVersions(ctx)
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(4 * time.Second): // longer than a webhook of an unstored SidecarSet stays
		}
		after, err := objectVersions(ctx)
		if err != nil {
			return err
		}
		writes := 0
		for object, version := range after {
			if before[object] != version {
				writes++
			}
		}
		if writes > 0 {
			return fmt.Errorf("%d objects were written in 4 s in which nothing was applied", writes)
		}
		return nil
	})
	return took
}

// objectVersions returns the resourceVersions of all shard objects.
func objectVersions(ctx context.Context) (map[string]string, error) {
	list, err := clients[0].AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{LabelSelector: podwebhook.Labelled().String()})
	if err != nil {
		return nil, err
	}
	versions := map[string]string{}
	for i := range list.Items {
		versions[list.Items[i].Name] = list.Items[i].ResourceVersion
	}
	return versions, nil
}
