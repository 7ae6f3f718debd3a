package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

const selectsAll = `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: NAME, annotations: {sidecarset.io/timeout-seconds: "TIMEOUT", sidecarset.io/failure-policy: POLICY}MORE}
spec:
  selector: {matchLabels: {app: NAME}}
  updateStrategy: {type: NotUpdate}
  containers: [{name: side, image: "example.com/side:v1"}]
`

// applyReady creates a SidecarSet for Pods whose label app is its name, and waits until it is Ready. more are
// members of its metadata.
func applyReady(t *testing.T, name, timeout, policy, more string) {
	t.Helper()
	manifest := strings.NewReplacer("NAME", name, "TIMEOUT", timeout, "POLICY", policy, "MORE", more).Replace(selectsAll)
	await.Eventually(t, "SidecarSet "+name, func(ctx context.Context) error {
		_, err := cluster.Kubectl(ctx, manifest, "apply", "-f", "-")
		return err
	})
	testkit.AwaitReady(t, api, name)
}

// tryPod creates a Pod that the SidecarSet selects, in a dry run, and returns its images.
func tryPod(ctx context.Context, app string) (images string, err error) {
	return cluster.Kubectl(ctx, "", "-n", "default", "run", "tried", "--image=example.com/app:v1", "--labels=app="+app, "--dry-run=server",
		"-o", "jsonpath={.spec.containers[*].image}")
}

// awaitPod waits until Pods get these images; if images is "", until they are refused.
func awaitPod(t *testing.T, app, images string) {
	t.Helper()
	await.Eventually(t, "Pods with app="+app, func(ctx context.Context) error {
		got, err := tryPod(ctx, app)
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

// The last test of the operator that all tests share: it uninstalls it.
func TestWhileNoReplicaRuns(t *testing.T) {
	operator.NeedReplicas(t)
	t.Run("only selected Pods are affected", testBlast)
	t.Run("the docs name the way out", testWaysOut)
	t.Run("deletions end", testDeletions)
	t.Run("nothing is left of an installation", testUninstall)
}

// While no replica answers, Pods that no SidecarSet selects are not affected: API servers do not even
// try to call. Selected Pods are refused with a message that names the webhook, or admitted and counted, as the
// failure policy of their SidecarSet says. Ready says that no replica answers.
func testBlast(t *testing.T) {
	for name, policy := range map[string]string{"refused": "Fail", "ignored": "Ignore"} {
		applyReady(t, name, "2", policy, "")
		awaitPod(t, name, injected)
	}
	t.Run("they hang", func(t *testing.T) {
		for _, replica := range replicas {
			if err := replica.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
		checkBlast(t)
	})
	t.Run("they are gone", func(t *testing.T) {
		crash(t)
		checkBlast(t)
		controller := operator.StartApart(t, 21, "--role=controller")
		testkit.Await(t, api, "refused", "the reason NoReplica", func(set *appsv1beta1.SidecarSet) error {
			if c := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady); c == nil || c.Reason != appsv1beta1.ReasonNoReplica {
				return fmt.Errorf("%s says %+v", controller.Name, c)
			}
			return nil
		})
	})
	restart(t)
	testkit.AwaitReady(t, api, "refused", "ignored")
	awaitPod(t, "refused", injected)
	testkit.Await(t, api, "ignored", "uninjectedPods", func(set *appsv1beta1.SidecarSet) error {
		if got := set.Status.UninjectedPods; got != 2 {
			return fmt.Errorf("%d, want 2", got)
		}
		return nil
	})
}

// checkBlast creates Pods of each kind.
func checkBlast(t *testing.T) {
	t.Helper()
	create := func(app string) (*corev1.Pod, error) {
		pod := testkit.NewPod(testkit.AppLabels(app))
		return operator.Clients.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), pod, metav1.CreateOptions{})
	}
	before := calls(t)
	for range 30 {
		if _, err := create("unselected"); err != nil {
			t.Errorf("a Pod that no SidecarSet selects: %v", err)
		}
	}
	// The operator's own Pods above all: otherwise no replica could ever run again.
	for _, namespace := range []string{"kube-system", deploy.Namespace} {
		const restricted = `{"spec":{"securityContext":{"runAsNonRoot":true,"runAsUser":1,"seccompProfile":{"type":"RuntimeDefault"}},"containers":[{"name":"own","image":"x","securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}}]}}`
		testkit.Kubectl(t, cluster, "", "-n", namespace, "run", "own", "--image=x", "--dry-run=server", "--labels=app=refused", "--overrides="+restricted)
	}
	if after := calls(t); after != before {
		t.Errorf("the API server called webhooks %.0f times for Pods that no SidecarSet selects", after-before)
	}
	if _, err := create("refused"); err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), ".pods.sidecarset.io") {
		t.Errorf("a Pod that no replica can inject: %v, want a refusal that names the webhook", err)
	}
	if calls(t) == before {
		t.Error("the metrics of the API server do not show a call that was tried")
	}
	if pod, err := create("ignored"); err != nil || len(pod.Spec.Containers) != 1 {
		t.Errorf("a Pod whose SidecarSet says Ignore: %v", err)
	}
}

// calls is how often the API server has called a webhook for a Pod, or tried to.
func calls(t *testing.T) (total float64) {
	t.Helper()
	text := testkit.Kubectl(t, cluster, "", "get", "--raw", "/metrics")
	for _, name := range []string{
		"apiserver_admission_webhook_request_total", "apiserver_admission_webhook_admission_duration_seconds_count",
		"apiserver_admission_webhook_rejection_count", "apiserver_admission_webhook_fail_open_count",
	} {
		sum, err := testkit.SumOf(text, name, ".pods.sidecarset.io")
		if err != nil {
			t.Fatal(err)
		}
		total += sum
	}
	return total
}

// While no replica runs, selected Pods are refused, even if their SidecarSet is deleted. With the
// commands of the docs they can be created, and the administrator need not undo anything.
func testWaysOut(t *testing.T) {
	blocks := testkit.Blocks(t, filepath.Join(deploy.Root(), "docs/troubleshooting.md"), "sh outage") // for all webhooks, and for one
	if len(blocks) != 2 {
		t.Fatalf("the page has %d blocks about an outage, want 2", len(blocks))
	}
	all, one := blocks[0], blocks[1]
	for _, name := range []string{"one", "two", "gone"} {
		applyReady(t, name, "30", "Fail", "")
		awaitPod(t, name, injected)
	}
	crash(t)
	shown := testkit.Kubectl(t, cluster, "", "get", "mutatingwebhookconfigurations", "-l", "sidecarset.io/pod-webhooks",
		"-o", `jsonpath={.items[*].metadata.annotations.sidecarset\.io/when-no-replica-runs}`)
	if got := strings.Count(shown, strings.TrimSpace(all)); got != podwebhook.Shards {
		t.Errorf("%d objects show the way out: %s", got, shown)
	}
	testkit.Kubectl(t, cluster, "", "delete", "sidecarset", "gone")
	for _, app := range []string{"one", "two", "gone"} {
		awaitPod(t, app, "")
	}
	_, err := tryPod(t.Context(), "one")
	if err == nil {
		t.Fatal("a Pod was let through")
	}
	webhook := regexp.MustCompile(`failed calling webhook \\?"([^"\\]+)`).FindStringSubmatch(err.Error())
	if webhook == nil {
		t.Fatalf("the refusal names no webhook: %v", err)
	}
	testkit.Shell(t, cluster, "", strings.Replace(one, "0123456789abcdef.pods.sidecarset.io", webhook[1], 1))
	awaitPod(t, "one", bare)
	awaitPod(t, "two", "")
	testkit.Shell(t, cluster, "", all)
	for _, app := range []string{"one", "two", "gone"} {
		awaitPod(t, app, bare)
	}
	restart(t)
	awaitPod(t, "one", injected)
	awaitPod(t, "two", injected)
	awaitPod(t, "gone", bare)
	testkit.AwaitReady(t, api, "one", "two")
}

// The garbage collector removes a finalizer from an object that is deleted in the foreground.
// This update must succeed without a replica.
func testDeletions(t *testing.T) {
	applyReady(t, "foreground", "30", "Fail", "")
	applyReady(t, "held", "30", "Fail", ", finalizers: [example.com/hold]")
	crash(t)
	testkit.Kubectl(t, cluster, "", "delete", "sidecarset", "foreground", "--cascade=foreground", "--timeout=180s")
	testkit.Kubectl(t, cluster, "", "delete", "sidecarset", "held", "--wait=false")
	// Any other change must be checked by a replica, so it is refused.
	for _, change := range []string{
		`{"spec": {"containers": [{"name": "side", "image": "example.com/other:v1"}]}}`,
		`{"metadata": {"annotations": {"apps.kruise.io/sidecarset-canary": "true"}}}`,
		`{"metadata": {"labels": {"apps.kruise.io/sidecarset-custom-version": "v2"}}}`,
	} {
		if out, err := cluster.Kubectl(t.Context(), "", "patch", "sidecarset", "held", "--type=merge", "-p", change); err == nil {
			t.Errorf("a SidecarSet that is being deleted was changed unseen by %s: %s", change, out)
		}
	}
	testkit.Kubectl(t, cluster, "", "patch", "sidecarset", "held", "--type=merge", "-p", `{"metadata": {"finalizers": null}}`)
	testkit.Kubectl(t, cluster, "", "delete", "crd", deploy.CRD, "--timeout=180s")
}

// The README's command removes everything, although no replica runs that could clean up. If webhooks
// remained, they would refuse Pods for ever.
func testUninstall(t *testing.T) {
	testkit.Kubectl(t, cluster, "", uninstall...)
	await.Eventually(t, "nothing of it", nothingIsLeft)
	awaitPod(t, "one", bare)
}
