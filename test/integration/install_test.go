package integration

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/manifests"
	"github.com/sidecarset/operator/test/testkit"
)

// The operator writes a CA bundle into objects of the manifests. If an administrator changes
// the manifests and applies them again, the bundles remain. The output of the command shows
// this, so the operator cannot have written them again.
func TestApplyingAgainKeepsTheBundle(t *testing.T) {
	operator.NeedReplicas(t)
	text, err := manifests.Build(filepath.Join(deploy.Root(), "test/overlays/processes"))
	if err != nil {
		t.Fatal(err)
	}
	for _, flags := range [][]string{{}, {"--server-side", "--force-conflicts"}} {
		for _, timeout := range []string{"11", "10"} { // the last one is the original
			changed := strings.ReplaceAll(text, "timeoutSeconds: 10", "timeoutSeconds: "+timeout)
			out := testkit.Kubectl(t, cluster, changed, append([]string{"apply", "-o", "json", "-f", "-"}, flags...)...)
			// Bundles are in two webhook configurations, in the CRD, and in each present entry.
			if bundles, clients := strings.Count(out, `"caBundle": "`), strings.Count(out, `"clientConfig": {`); bundles != clients || bundles < 3 {
				t.Errorf("after apply %v there are %d bundles for %d clients, want one for each, of which there are three at least", flags, bundles, clients)
			}
		}
	}
}

// leader returns the index of the replica that has acquired the lease.
func leader(t *testing.T) (leads int) {
	t.Helper()
	await.Eventually(t, "a leader", func(context.Context) error {
		leads = slices.IndexFunc(replicas, func(replica *deploy.Replica) bool {
			return strings.Contains(replica.Log(), "Successfully acquired lease")
		})
		if leads < 0 {
			return errors.New("no replica says that it leads")
		}
		return nil
	})
	return leads
}

func leaseHolder(ctx context.Context) (string, error) {
	return cluster.Kubectl(ctx, "", "-n", deploy.Namespace, "get", "lease", deploy.Lease, "-o", "jsonpath={.spec.holderIdentity}")
}

// A leader that is asked to stop releases the Lease, and the other replica leads. A leader that loses
// its Lease ends as well; until its endpoint is removed, it answers requests: its drain is long enough for that.
func TestALeaderThatLeavesFailsNoCall(t *testing.T) {
	operator.NeedReplicas(t)
	namespace := testkit.Namespace(t, api, nil)
	createSidecarSet(t, namespace, onlyHere("web"))
	before, err := leaseHolder(t.Context())
	if err != nil || before == "" {
		t.Fatalf("holder %q, %v", before, err)
	}
	first := leader(t)
	for _, i := range []int{first, 1 - first} {
		if err := replicas[i].Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if code := replicas[i].ExitCode(); code != 0 {
			t.Errorf("%s ended with %d after it was asked to stop", replicas[i].Name, code)
		}
		// If the leader had not released the Lease, the Lease would still name it.
		if now, err := leaseHolder(t.Context()); err != nil || now == before {
			t.Errorf("the lease is held by %q after its holder ended, %v", now, err)
		}
	}
	start := func(i int, args ...string) {
		if replicas[i], err = operator.StartReplica(t.Context(), i+1, args...); err != nil {
			t.Fatal(err)
		}
	}
	start(0, "--drain-grace=5s", "--leader-elect-renew-deadline=5s") // leads, because it is alone
	start(1)
	leads := replicas[0]
	testkit.AwaitCalled(t, api)

	ctx, stop := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	var failed error
	calling.Go(func() {
		for pause := time.Tick(10 * time.Millisecond); ctx.Err() == nil; <-pause {
			p := pod(namespace, "p", "app=web")
			if err := api.Create(ctx, p, client.DryRunAll); ctx.Err() == nil && (err != nil || len(p.Spec.Containers) != 2) {
				failed = fmt.Errorf("%d containers: %w", len(p.Spec.Containers), err)
			}
		}
	})
	steal := []byte(`{"spec": {"holderIdentity": "another", "leaseDurationSeconds": 8}}`)
	if _, err := operator.Clients.CoordinationV1().Leases(deploy.Namespace).Patch(t.Context(), deploy.Lease, types.MergePatchType, steal, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "the leader to leave", func(ctx context.Context) error {
		if leads.Ready(ctx) == nil {
			return errors.New("it is ready")
		}
		return operator.RemoveEndpoint(ctx, leads)
	})
	await.Eventually(t, "its end", func(context.Context) error {
		if leads.Running() {
			return errors.New("it runs")
		}
		return nil
	})
	stop()
	calling.Wait()
	if failed != nil {
		t.Errorf("a Pod: %v", failed)
	}
	start(0)
}

// While API servers may still call a replica that has been asked to stop, the replica learns
// of new SidecarSets. The drain of this replica takes longer than the test waits.
func TestADrainingReplicaLearnsOfNewSidecarSets(t *testing.T) {
	operator.NeedReplicas(t)
	namespace := testkit.Namespace(t, api, nil)
	replica := operator.StartSpare(t, "--drain-grace="+(3*await.Patience).String())
	if err := replica.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "a replica that says that it leaves", func(ctx context.Context) error {
		if replica.Ready(ctx) == nil {
			return errors.New("it is ready")
		}
		return nil
	})
	set := newSidecarSet(t, namespace, onlyHere("web"))
	create(t, set)
	t.Cleanup(func() { deleteSidecarSet(t, set) })
	await.Eventually(t, "the new SidecarSet there", func(ctx context.Context) error {
		return replica.Injects(ctx, set.GetName(), namespace, map[string]string{"app": "web"})
	})
	replica.Kill()
}

// watchesOfPods returns how many watches of Pods the API server serves.
func watchesOfPods(ctx context.Context) (int, error) {
	text, err := cluster.Kubectl(ctx, "", "get", "--raw", "/metrics")
	if err != nil {
		return 0, err
	}
	count, err := testkit.SumOf(text, "apiserver_longrunning_requests", `resource="pods"`, `verb="WATCH"`)
	return int(count), err
}

// Only the leader watches Pods, with one watch. Neither the manager's cache nor a replica
// that does not lead keeps Pods.
func TestOnlyTheLeaderWatchesPods(t *testing.T) {
	await.Eventually(t, "the watches of Pods", func(ctx context.Context) error {
		count, err := watchesOfPods(ctx)
		if err == nil && count != watchesBefore+1 {
			err = fmt.Errorf("there are %d, and were %d before the operator", count, watchesBefore)
		}
		return err
	})
}
