package chaos

import (
	"errors"
	"testing"
	"time"

	"github.com/sidecarset/operator/test/deploy"
)

// check fails the test unless every Pod was created with its sidecars.
func check(t *testing.T, figures Figures) {
	t.Helper()
	if figures.Created == 0 || figures.Failed > 0 || figures.Uninjected > 0 {
		t.Errorf("%s; failures: %q", &figures, figures.Errors)
	}
}

// Replicas are restarted one after the other, as by a rollout, again and again.
func TestARollingRestartFailsNoPod(t *testing.T) {
	replicas := startReplicas(t, 3, "--drain-grace=2s")
	namespace := newNamespace(t)
	applySidecarSet(t, namespace, "rolling")
	awaitInjection(t, replicas, namespace, "rolling")

	load := Load{Clients: clients, Namespace: namespace, Labels: podLabels("rolling"), Sidecars: []string{"rolling"}, Rate: 50}
	running := load.Start(t.Context())
	begin, restarts := time.Now(), 0
	for lasting := scaled(10*time.Second, 60*time.Second); time.Since(begin) < lasting || restarts%len(replicas) > 0; restarts++ {
		i := restarts % len(replicas)
		if err := restart(t, replicas, i); err != nil {
			t.Error(err)
			break
		}
	}
	figures := running.Stop()
	report(t, "replicas=%d restarts=%d rate=%d %s", len(replicas), restarts, load.Rate, &figures)
	check(t, figures)
}

// restart stops a replica as a kubelet does, which withdraws its endpoint while
// it tells it to stop and not before; and starts it again.
func restart(t *testing.T, replicas []*deploy.Replica, i int) error {
	t.Helper()
	old := replicas[i]
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		old.Process.Stop()
	}()
	err := operator.RemoveEndpoint(t.Context(), old)
	<-stopped
	checkLog(t, old)
	started, startErr := operator.StartReplica(t.Context(), old.Number, "--drain-grace=2s")
	if startErr == nil {
		replicas[i] = started
	}
	return errors.Join(err, startErr)
}
