package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
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
	var old [2]atomic.Bool
	quick, err := deploy.QuickProgram()
	if err != nil {
		t.Fatal(err)
	}
	operator.Amend = func(c *stand.Command) {
		c.Path = quick // the earlier version leaves a Secret that the new one writes again
		if number := strings.TrimPrefix(c.Name, "operator-"); number == "1" && old[0].Load() || number == "2" && old[1].Load() {
			c.Path = previous
		}
	}
	t.Cleanup(func() {
		operator.Amend = nil
		forgetCAs(t)
	})
	old[0].Store(true)
	old[1].Store(true)
	publishAPIServers(t) // so that the operator waits for both
	f := startReplicas(t, 2, "--drain-grace=5s")
	leader := f.awaitLeader(t)
	namespace := newNamespace(t)
	applySidecarSet(t, namespace, "versions")
	testkit.AwaitReady(t, api, "versions")
	awaitInjected(t, namespace, "versions", 3)

	v := &versions{namespace: namespace}
	load := testkit.Load{Clients: clients, Namespace: namespace, Labels: testkit.AppLabels("versions"), Sidecars: []string{"versions"}, Rate: 20, DryRun: testkit.Scaled(true, false)}
	running := load.Start(t.Context())
	follower := func(byOld bool) { // the follower is replaced
		old[1-leader].Store(byOld)
		if err := f.restart(t, 1-leader); err != nil {
			t.Fatal(err)
		}
	}
	takeOver := func(byOld bool) { // the follower takes over; the leader is replaced
		old[leader].Store(byOld)
		handOver(t, f, leader)
		leader = 1 - leader
	}
	v.check(t, "old alone")
	follower(false)
	v.check(t, "old leads, new beside it")
	takeOver(true)
	v.check(t, "new leads, old beside it")
	follower(false)
	v.check(t, "new alone")
	// And back.
	follower(true)
	v.check(t, "new leads, old beside it, rolling back")
	takeOver(false)
	v.check(t, "old leads, new beside it, rolling back")
	follower(true)
	v.check(t, "old alone again")

	figures := running.Stop()
	testkit.Report(t, "%s", &figures)
	if figures.Failed > 0 || figures.Uninjected > 0 {
		t.Errorf("Pods: %s; %q", &figures, figures.Errors)
	}
}

// The operator is upgraded in the middle of a rollout, and rolled back in the middle of the next one.
// Both rollouts continue from what the Pods say, and keep the budget.
func TestARolloutGoesOnWithAnotherVersion(t *testing.T) {
	previous := os.Getenv(previousOperator)
	if previous == "" {
		t.Skip("SKIP: there is no operator of an earlier commit; make chaos builds one where the history of the repository is there")
	}
	var old atomic.Bool
	operator.Amend = func(c *stand.Command) {
		if old.Load() {
			c.Path = previous
		}
	}
	t.Cleanup(func() { operator.Amend = nil })
	r := newRolled(t, 200, 10)
	for _, byOld := range []bool{true, false} {
		old.Store(byOld)
		r.replaceControllers(t)
		r.await(t)
		image := r.begin(t)
		r.awaitBegun(t, image, r.pods/4)
		old.Store(!byOld)
		r.replaceControllers(t)
		if done := r.with(image); done >= r.pods {
			t.Errorf("%d of %d Pods had their image before the other version led", done, r.pods)
		}
		r.end(t, image)
		if t.Failed() {
			return
		}
	}
	r.report(t, "versions", 2)
}

// replaceControllers kills the controllers, and starts others.
func (r *rolled) replaceControllers(t *testing.T) {
	t.Helper()
	r.controllers.kill()
	r.controllers.revive(t)
	r.controllers.awaitLeader(t)
}

// versions is what happens at every step.
type versions struct {
	namespace string
	step      int
}

// check applies SidecarSets, and looks at Pods directly behind them and after they are
// Ready. Then it changes nothing for a while.
func (v *versions) check(t *testing.T, name string) {
	t.Helper()
	v.step++
	pods := watchMisses(t)
	const count = 3
	for i := range count {
		app := fmt.Sprintf("versions-%d-%d", v.step, i)
		set := testkit.NewPatientSet(app, v.namespace)
		t.Cleanup(func() {
			if err := deleteSet(context.WithoutCancel(t.Context()), app); err != nil {
				t.Error(err)
			}
		})
		how, err := create(t.Context(), sets[i%len(sets)], set)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		pod, err := clients[i%len(clients)].CoreV1().Pods(v.namespace).Create(t.Context(), testkit.NewPod(testkit.AppLabels(app)), metav1.CreateOptions{})
		if err != nil {
			t.Errorf("%s: a Pod directly behind %s: %v", name, app, err)
		} else {
			pods.add(pod, how, app)
		}
		testkit.AwaitReady(t, api, app)
		for _, client := range clients {
			if pod, err := client.CoreV1().Pods(v.namespace).Create(t.Context(), testkit.NewPod(testkit.AppLabels(app)), metav1.CreateOptions{}); err != nil || !testkit.Injected(pod, []string{app}) {
				t.Errorf("%s: %s is ready, and a Pod is created without it: %v", name, app, err)
			}
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

// handOver stops the leader of two replicas, and starts it again when the other one leads.
func handOver(t *testing.T, f *fleet, leader int) {
	t.Helper()
	if err := f.replicas[leader].Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	heir := f.replicas[1-leader]
	await.Eventually(t, heir.Name+" leads", func(context.Context) error {
		if !strings.Contains(heir.Log(), "Successfully acquired lease") {
			return errors.New("it does not say so")
		}
		return nil
	})
	if err := f.start(t, leader); err != nil {
		t.Fatal(err)
	}
}
