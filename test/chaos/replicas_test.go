package chaos

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// Replicas have both roles. They are restarted one after the other, as by a rollout: no Pod fails, no conversion
// and no review of a SidecarSet, and the condition Ready does not change. Then the leader crashes. Until its
// endpoint is removed, API servers still call it for some Pods, and refuse these Pods. No Pod is admitted
// without its sidecar, and no Pod is refused afterwards.
func TestReplicasMayRestartAndCrash(t *testing.T) {
	t.Cleanup(func() { forgetLease(t) })
	replicas := startReplicas(t, 3, "--drain-grace=5s") // 5 s is the default
	namespace := testkit.Namespace(t, api, nil)
	applySidecarSet(t, namespace, "replicas")
	awaitInjection(t, replicas, namespace, "replicas", 1)
	testkit.AwaitReady(t, api, "replicas")
	load := testkit.Load{Clients: clients, Namespace: namespace, Labels: testkit.AppLabels("replicas"), Sidecars: []string{"replicas"}, Rate: testkit.Scaled(20, 50), DryRun: testkit.Scaled(true, false)}

	t.Run("restarted one after the other", func(t *testing.T) {
		running, callers := load.Start(t.Context()), callAll(t, clients, nil, namespace, "replicas")
		readiness := newCallers(t, 50*time.Millisecond)
		readiness.repeat("the condition Ready", func(ctx context.Context) error {
			set, err := testkit.Get(ctx, api, "replicas")
			if err == nil {
				err = testkit.Ready(set)
			}
			return err
		})
		begin, restarts := time.Now(), 0
		for lasting := testkit.Scaled(10*time.Second, 60*time.Second); time.Since(begin) < lasting || restarts%3 > 0; restarts++ {
			if err := replicas.restart(t, restarts%3); err != nil {
				t.Error(err)
				break
			}
		}
		figures, calls := running.Stop(), callers.end()
		readiness.end().check(t)
		testkit.Report(t, "replicas=3 restarts=%d rate=%d %s; other calls: %s", restarts, load.Rate, &figures, calls)
		check(t, figures)
		calls.check(t)
	})
	t.Run("the leader crashes", func(t *testing.T) {
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
			awaitInjected(t, namespace, "replicas", 10) // the API servers follow with a delay
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
	})
}

// forgetLease deletes the Lease. Otherwise replicas of the next test would wait until the Lease of a
// leader that was killed has expired.
func forgetLease(t *testing.T) {
	t.Helper()
	err := clients[0].CoordinationV1().Leases(deploy.Namespace).Delete(context.WithoutCancel(t.Context()), "sidecarset-operator", metav1.DeleteOptions{})
	if client.IgnoreNotFound(err) != nil {
		t.Error(err)
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
