package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// While no replica answers, Pods that no SidecarSet selects are not affected: API servers do not even
// try to call. Selected Pods are refused with a message that names the webhook, or admitted and counted, as the
// failure policy of their SidecarSet says. Ready says that no replica answers.
func (o *outage) testBlast(t *testing.T) {
	for name, policy := range map[string]string{"refused": "Fail", "ignored": "Ignore"} {
		annotations := fmt.Sprintf(`{%s: "2", %s: %s}`, appsv1beta1.AnnotationTimeoutSeconds, appsv1beta1.AnnotationFailurePolicy, policy)
		manifest := strings.NewReplacer("name: all", "name: "+name, `{sidecarset.io/timeout-seconds: "30"}`, annotations, "app: web", "app: "+name).Replace(selectsAll)
		if _, err := o.cluster.Kubectl(t.Context(), manifest, "apply", "-f", "-"); err != nil {
			t.Fatal(err)
		}
		o.kubectl(t, "wait", "--for=condition=Ready", "sidecarset/"+name, "--timeout=180s")
		o.awaitPod(t, name, injected)
	}
	t.Run("it hangs", func(t *testing.T) {
		if err := o.replica.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		o.checkBlast(t)
	})
	t.Run("it is gone", func(t *testing.T) {
		o.stop(t)
		o.checkBlast(t)
		controller, err := o.operator.StartReplicaUnready(t.Context(), 21, "--role=controller")
		if err != nil {
			t.Fatal(err)
		}
		defer controller.Process.Stop()
		await.Eventually(t, "the condition", func(ctx context.Context) error {
			said, err := o.cluster.Kubectl(ctx, "", "get", "sidecarset", "refused", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].reason}`)
			if err == nil && said != appsv1beta1.ReasonNoReplica {
				err = fmt.Errorf("the reason is %s", said)
			}
			return err
		})
	})
	o.start(t)
	for _, name := range []string{"refused", "ignored"} {
		o.kubectl(t, "wait", "--for=condition=Ready", "sidecarset/"+name, "--timeout=180s")
		o.awaitPod(t, name, injected)
	}
	await.Eventually(t, "uninjectedPods", func(ctx context.Context) error {
		got, err := o.cluster.Kubectl(ctx, "", "get", "sidecarset", "ignored", "-o", "jsonpath={.status.uninjectedPods}")
		if err == nil && got != "2" {
			err = fmt.Errorf("%s, want 2", got)
		}
		return err
	})
}

// checkBlast creates Pods of each kind.
func (o *outage) checkBlast(t *testing.T) {
	t.Helper()
	create := func(app string) (*corev1.Pod, error) {
		pod := testkit.NewPod(testkit.AppLabels(app))
		return o.operator.Clients.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), pod, metav1.CreateOptions{})
	}
	before := o.calls(t)
	for range 30 {
		if _, err := create("unselected"); err != nil {
			t.Errorf("a Pod that no SidecarSet selects: %v", err)
		}
	}
	if after := o.calls(t); after != before {
		t.Errorf("the API server called webhooks %.0f times for Pods that no SidecarSet selects", after-before)
	}
	if _, err := create("refused"); err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), ".pods.sidecarset.io") {
		t.Errorf("a Pod that no replica can inject: %v, want a refusal that names the webhook", err)
	}
	if o.calls(t) == before {
		t.Error("the metrics of the API server do not show a call that was tried")
	}
	if pod, err := create("ignored"); err != nil || len(pod.Spec.Containers) != 1 {
		t.Errorf("a Pod whose SidecarSet says Ignore: %v", err)
	}
}

// calls is how often the API server has called a webhook for a Pod, or tried to.
func (o *outage) calls(t *testing.T) (total float64) {
	t.Helper()
	text, err := o.operator.Clients.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"apiserver_admission_webhook_request_total", "apiserver_admission_webhook_admission_duration_seconds_count",
		"apiserver_admission_webhook_rejection_count", "apiserver_admission_webhook_fail_open_count",
	} {
		sum, err := testkit.SumOf(string(text), name, ".pods.sidecarset.io")
		if err != nil {
			t.Fatal(err)
		}
		total += sum
	}
	return total
}
