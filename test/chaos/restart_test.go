package chaos

import (
	"testing"
	"time"

	"github.com/sidecarset/operator/test/testkit"
)

// check fails the test unless every Pod was created with its sidecars.
func check(t *testing.T, figures testkit.Figures) {
	t.Helper()
	if figures.Created == 0 || figures.Failed > 0 || figures.Uninjected > 0 {
		t.Errorf("%s; failures: %q", &figures, figures.Errors)
	}
}

// Replicas are restarted one after the other, as by a rollout, again and again.
func TestARollingRestartFailsNoPod(t *testing.T) {
	replicas := startReplicas(t, 3, append([]string{"--drain-grace=5s"}, patientLeases...)...) // 5 s is the default
	namespace := newNamespace(t)
	applySidecarSet(t, namespace, "rolling")
	awaitInjection(t, replicas, namespace, "rolling", 1)
	testkit.AwaitReady(t, api, "rolling")
	stop := staysReady(t, "rolling")
	defer stop()

	load := testkit.Load{Clients: clients, Namespace: namespace, Labels: testkit.AppLabels("rolling"), Sidecars: []string{"rolling"}, Rate: testkit.Scaled(20, 50), DryRun: testkit.Scaled(true, false)}
	running := load.Start(t.Context())
	begin, restarts := time.Now(), 0
	for lasting := testkit.Scaled(10*time.Second, 60*time.Second); time.Since(begin) < lasting || restarts%3 > 0; restarts++ {
		if err := replicas.restart(t, restarts%3); err != nil {
			t.Error(err)
			break
		}
	}
	figures := running.Stop()
	testkit.Report(t, "replicas=3 restarts=%d rate=%d %s", restarts, load.Rate, &figures)
	check(t, figures)
}
