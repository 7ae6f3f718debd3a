package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// outage is an operator for one test, because other tests need their replicas.
type outage struct {
	cluster  *stand.Cluster
	operator *deploy.Operator
	replica  *deploy.Replica
}

func newOutage(t *testing.T) *outage {
	t.Helper()
	operator.NeedReplicas(t)
	o := &outage{cluster: apart(t)}
	var err error
	if o.operator, err = deploy.Install(t.Context(), o.cluster); err != nil {
		t.Fatal(err)
	}
	o.start(t)
	t.Cleanup(func() { o.replica.Process.Stop() }) // the last one
	return o
}

func (o *outage) start(t *testing.T) {
	t.Helper()
	replica, err := o.operator.StartReplica(t.Context(), 20)
	if err != nil {
		t.Fatal(err)
	}
	o.replica = replica
}

// stop kills the replica, and removes its endpoint, as a cluster does.
func (o *outage) stop(t *testing.T) {
	t.Helper()
	o.replica.Kill()
	if err := o.operator.RemoveEndpoint(t.Context(), o.replica); err != nil {
		t.Fatal(err)
	}
}

func (o *outage) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := o.cluster.Kubectl(t.Context(), "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// apply creates a SidecarSet for Pods whose label app is its name.
func (o *outage) apply(t *testing.T, name, metadata string) {
	t.Helper()
	manifest := strings.NewReplacer("{name: all", "{name: "+name+metadata, "app: web", "app: "+name).Replace(selectsAll)
	await.Eventually(t, "SidecarSet "+name, func(ctx context.Context) error {
		_, err := o.cluster.Kubectl(ctx, manifest, "apply", "-f", "-")
		return err
	})
	o.kubectl(t, "wait", "--for=condition=Ready", "sidecarset/"+name, "--timeout=180s")
}

// pod creates a Pod that the SidecarSet selects, in a dry run, and returns its images.
func (o *outage) pod(ctx context.Context, app string) (images string, err error) {
	return o.cluster.Kubectl(ctx, "", "-n", "default", "run", "tried", "--image=example.com/app:v1", "--labels=app="+app, "--dry-run=server",
		"-o", "jsonpath={.spec.containers[*].image}")
}

// awaitPod waits until Pods get these images; if images is "", until they are refused.
func (o *outage) awaitPod(t *testing.T, app, images string) {
	t.Helper()
	await.Eventually(t, "Pods with app="+app, func(ctx context.Context) error {
		got, err := o.pod(ctx, app)
		if err != nil && !strings.Contains(err.Error(), ".pods.sidecarset.io") {
			return err
		}
		if got != images {
			return fmt.Errorf("images are %q (%w), want %q", got, err, images)
		}
		return nil
	})
}

const (
	bare     = "example.com/app:v1"
	injected = "example.com/side:v1 example.com/app:v1"
)

func TestWhileNoReplicaRuns(t *testing.T) {
	o := newOutage(t)
	t.Run("only selected Pods are affected", o.testBlast)
	t.Run("the docs name the way out", o.testWaysOut)
	t.Run("deletions end", o.testDeletions) // the last one: it deletes the CustomResourceDefinition
}

// While no replica runs, selected Pods are refused, even if their SidecarSet is deleted. With the
// commands of the docs they can be created, and the administrator need not undo anything.
func (o *outage) testWaysOut(t *testing.T) {
	blocks := testkit.Blocks(t, filepath.Join(deploy.Root(), "docs/troubleshooting.md"), "sh outage") // for all webhooks, and for one
	if len(blocks) != 2 {
		t.Fatalf("the page has %d blocks about an outage, want 2", len(blocks))
	}
	all, one := blocks[0], blocks[1]
	for _, name := range []string{"one", "two", "gone"} {
		o.apply(t, name, "")
		o.awaitPod(t, name, injected)
	}
	o.stop(t)
	shown := o.kubectl(t, "get", "mutatingwebhookconfigurations", "-l", "sidecarset.io/pod-webhooks",
		"-o", `jsonpath={.items[*].metadata.annotations.sidecarset\.io/when-no-replica-runs}`)
	if got := strings.Count(shown, strings.TrimSpace(all)); got != podwebhook.Shards {
		t.Errorf("%d objects show the way out: %s", got, shown)
	}
	o.kubectl(t, "delete", "sidecarset", "gone")
	for _, app := range []string{"one", "two", "gone"} {
		o.awaitPod(t, app, "")
	}
	_, err := o.pod(t.Context(), "one")
	if err == nil {
		t.Fatal("a Pod was let through")
	}
	webhook := regexp.MustCompile(`failed calling webhook \\?"([^"\\]+)`).FindStringSubmatch(err.Error())
	if webhook == nil {
		t.Fatalf("the refusal names no webhook: %v", err)
	}
	testkit.Shell(t, o.cluster, "", strings.Replace(one, "0123456789abcdef.pods.sidecarset.io", webhook[1], 1))
	o.awaitPod(t, "one", bare)
	o.awaitPod(t, "two", "")
	testkit.Shell(t, o.cluster, "", all)
	for _, app := range []string{"one", "two", "gone"} {
		o.awaitPod(t, app, bare)
	}
	o.start(t)
	o.awaitPod(t, "one", injected)
	o.awaitPod(t, "two", injected)
	o.awaitPod(t, "gone", bare)
	for _, name := range []string{"one", "two"} {
		o.kubectl(t, "wait", "--for=condition=Ready", "sidecarset/"+name, "--timeout=180s")
	}
}

// The garbage collector removes a finalizer from an object that is deleted in the foreground.
// This update must succeed without a replica.
func (o *outage) testDeletions(t *testing.T) {
	o.apply(t, "foreground", "")
	o.apply(t, "held", ", finalizers: [example.com/hold]")
	o.stop(t)
	o.kubectl(t, "delete", "sidecarset", "foreground", "--cascade=foreground", "--timeout=180s")
	o.kubectl(t, "delete", "sidecarset", "held", "--wait=false")
	// Any other change must be checked by a replica, so it is refused.
	for _, change := range []string{
		`{"spec": {"containers": [{"name": "side", "image": "example.com/other:v1"}]}}`,
		`{"metadata": {"annotations": {"apps.kruise.io/sidecarset-canary": "true"}}}`,
		`{"metadata": {"labels": {"apps.kruise.io/sidecarset-custom-version": "v2"}}}`,
	} {
		if out, err := o.cluster.Kubectl(t.Context(), "", "patch", "sidecarset", "held", "--type=merge", "-p", change); err == nil {
			t.Errorf("a SidecarSet that is being deleted was changed unseen by %s: %s", change, out)
		}
	}
	o.kubectl(t, "patch", "sidecarset", "held", "--type=merge", "-p", `{"metadata": {"finalizers": null}}`)
	o.kubectl(t, "delete", "crd", deploy.CRD, "--timeout=180s")
}
