package certificates

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
)

// A replica of another mode has a certificate that no API server trusts until a replica of
// that mode leads. Then API servers trust it. They refuse no Pod meanwhile, because they
// still trust the remaining replicas of the earlier mode.
func TestANewLeaderChangesTheMode(t *testing.T) {
	i := install(t, deploy.Default)
	// The leader drains until the API server has surely seen that its endpoint was removed.
	leader, follower := i.startOne(t, 1, "--drain-grace=5s"), i.startOne(t, 2, "--role=webhook")
	for _, replica := range []*deploy.Replica{leader, follower} {
		if err := errors.Join(replica.AwaitReady(t.Context()), i.AddEndpoint(t.Context(), replica)); err != nil {
			t.Fatal(err)
		}
	}
	await.Eventually(t, "a SidecarSet", func(ctx context.Context) error {
		_, err := i.Cluster.Kubectl(ctx, sidecarSet, "apply", "-f", "-")
		return err
	})
	await.Eventually(t, "calls", i.createPod)

	overlay := filepath.Join(deploy.Root(), "test/overlays/cert-manager")
	if _, err := i.Cluster.Kubectl(t.Context(), "", "apply", "--server-side", "--force-conflicts", "-k", overlay); err != nil {
		t.Fatal(err)
	}
	next := i.startOne(t, 3, "--cert-mode=cert-manager")
	expectReason(t, next, "does not exist yet: the leader declares it")
	i.during(t, i.createPod, func() {
		if err := errors.Join(leader.Stop(t.Context()), next.AwaitReady(t.Context()), i.AddEndpoint(t.Context(), next)); err != nil {
			t.Error(err)
		}
	})
	if err := follower.Ready(t.Context()); err != nil {
		t.Errorf("the replica of the mode before: %v", err)
	}
	await.Eventually(t, "calls of every kind", i.call)
}

// startOne starts a replica.
func (i *installation) startOne(t *testing.T, number int, args ...string) *deploy.Replica {
	t.Helper()
	replica, err := i.StartReplicaUnready(t.Context(), number, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(replica.Process.Stop)
	return replica
}

// expectReason waits until the replica is not ready, and its check of the certificate says
// want.
func expectReason(t *testing.T, replica *deploy.Replica, want string) {
	t.Helper()
	await.Eventually(t, "the reason why "+replica.Name+" is not ready", func(ctx context.Context) error {
		code, says, err := replica.Readyz(ctx, "/certificate")
		if err == nil && (code == http.StatusOK || !strings.Contains(says, want)) {
			err = fmt.Errorf("it says %d: %s", code, says)
		}
		return err
	})
}
