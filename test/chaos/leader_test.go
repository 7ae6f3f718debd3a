package chaos

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// fastLeases let another replica lead two seconds after a leader has ended.
var fastLeases = []string{"--leader-elect-lease-duration=2s", "--leader-elect-renew-deadline=1500ms", "--leader-elect-retry-period=300ms"}

// Where roles are split, as in config/overlays/hardened, the replicas that answer webhooks
// are not affected if leaders are killed. The next leader continues the work.
func TestKillingTheLeaderLeavesWebhooksAlone(t *testing.T) {
	controllers := startControllers(t, 2, fastLeases...)
	webhooks := startReplicas(t, 2, "--role=webhook")
	namespace := newNamespace(t)
	applySidecarSet(t, namespace, "leaderless")
	awaitInjection(t, webhooks, namespace, "leaderless", 1)
	controllers.await(t, "leaderless", "the status", testkit.Observed)

	load := testkit.Load{Clients: clients, Namespace: namespace, Labels: testkit.AppLabels("leaderless"), Sidecars: []string{"leaderless"}, Rate: 20, DryRun: testkit.Scaled(true, false)}
	running := load.Start(t.Context())
	var takeovers []time.Duration
	for kill := range testkit.Scaled(5, 20) {
		controllers.replicas[controllers.awaitLeader(t)].Kill()
		killed := time.Now()
		mustChangeImage(t, "leaderless", fmt.Sprintf("example.com/sidecar:v%d", kill+2))
		controllers.await(t, "leaderless", "the status", testkit.Observed)
		takeovers = append(takeovers, time.Since(killed))
		controllers.revive(t)
	}
	figures := running.Stop()
	testkit.Report(t, "kills=%d lease=2s takeover %s webhooks %s", len(takeovers), testkit.Spread(takeovers), &figures)
	check(t, figures)
}

// Replicas have both roles, and the leader crashes. Until its endpoint is removed, API servers
// still call it for some Pods, and refuse these Pods. No Pod is admitted without its sidecar,
// and no Pod is refused afterwards.
func TestACrashedReplicaRefusesUntilItIsWithdrawn(t *testing.T) {
	replicas := startReplicas(t, 3)
	namespace := newNamespace(t)
	applySidecarSet(t, namespace, "crash")
	awaitInjection(t, replicas, namespace, "crash", 1)

	load := testkit.Load{Clients: clients, Namespace: namespace, Labels: testkit.AppLabels("crash"), Sidecars: []string{"crash"}, Rate: testkit.Scaled(20, 50)}
	for range testkit.Scaled(1, 10) {
		leader := replicas.replicas[replicas.awaitLeader(t)]
		running := load.Start(t.Context())
		awaitAnswers(t, running, 20)
		leader.Kill()
		killed := time.Now()
		if err := operator.RemoveEndpoint(t.Context(), leader); err != nil {
			t.Error(err)
		}
		withdrawn := time.Since(killed)
		awaitInjected(t, namespace, "crash", 10) // the API servers follow with a delay
		during := running.Stop()

		running = load.Start(t.Context())
		awaitAnswers(t, running, 50)
		after := running.Stop()
		testkit.Report(t, "withdrawn-after=%s during: %s after: %s", testkit.Rounded(withdrawn), &during, &after)
		if during.Uninjected > 0 {
			t.Errorf("%d Pods were admitted without their sidecar", during.Uninjected)
		}
		check(t, after)
		replicas.revive(t)
	}
}

// awaitAnswers waits until count Pods have been created or refused.
func awaitAnswers(t *testing.T, running *testkit.Running, count int) {
	t.Helper()
	await.Eventually(t, "answers", func(context.Context) error {
		figures := running.Figures()
		if answered := figures.Created + figures.Failed; answered < count {
			return fmt.Errorf("%d Pods have been answered", answered)
		}
		return nil
	})
}
