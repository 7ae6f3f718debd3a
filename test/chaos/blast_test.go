package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/testkit"
)

// timeoutSeconds is how long the API server waits for the webhook in these tests.
const timeoutSeconds = 2

// While no replica answers, Pods that no SidecarSet selects are not affected: API servers
// do not even try to call. Selected Pods are refused with a message that names the
// webhook, or admitted and counted. Their SidecarSet's failure policy says which.
func TestWithoutReplicasOnlySelectedPodsAreAffected(t *testing.T) {
	replicas := startReplicas(t, 2)
	namespace := newNamespace(t)
	failing, ignored := testkit.NewSet("blast-fail", namespace, testkit.AppLabels("blast-fail")), testkit.NewSet("blast-ignore", namespace, testkit.AppLabels("blast-ignore"))
	failing.SetAnnotations(map[string]string{appsv1beta1.AnnotationTimeoutSeconds: fmt.Sprint(timeoutSeconds)})
	ignored.SetAnnotations(map[string]string{appsv1beta1.AnnotationTimeoutSeconds: fmt.Sprint(timeoutSeconds), appsv1beta1.AnnotationFailurePolicy: "Ignore"})
	createSets(t, []*unstructured.Unstructured{failing, ignored})
	testkit.AwaitReady(t, api, "blast-fail", "blast-ignore")

	admitted := 0
	outages := []struct {
		name  string
		begin func() error
		end   func() error
	}{
		{"killed, and called all the same", func() error { replicas.kill(); return nil }, func() error { return nil }},
		{"killed, and withdrawn from the Service", func() error { replicas.kill(); return replicas.withdraw(t.Context()) }, func() error { return nil }},
		{"hanging", func() error { return replicas.signal(syscall.SIGSTOP) }, func() error { return replicas.signal(syscall.SIGCONT) }},
	}
	for _, outage := range outages {
		t.Run(outage.name, func(t *testing.T) {
			if err := outage.begin(); err != nil {
				t.Fatal(err)
			}
			checkUnselected(t, namespace)
			checkRefused(t, namespace, "blast-fail")
			const few = 3
			checkAdmitted(t, namespace, "blast-ignore", few)
			admitted += few
			if err := outage.end(); err != nil {
				t.Fatal(err)
			}
			replicas.revive(t)
			for _, name := range []string{"blast-fail", "blast-ignore"} {
				replicas.await(t, name, "the condition Ready", testkit.Ready)
			}
			// A leader that hung may have lost its Lease, and ends only now.
			replicas.await(t, "blast-fail", "Pods that are injected", func(*appsv1beta1.SidecarSet) error {
				for i := range 5 * len(clients) {
					if err := testkit.TryPod(t.Context(), clients[i%len(clients)], namespace, "blast-fail", ""); err != nil {
						return err
					}
				}
				return nil
			})
			begin := time.Now()
			replicas.await(t, "blast-ignore", "uninjectedPods", func(set *appsv1beta1.SidecarSet) error {
				if int(set.Status.UninjectedPods) != admitted {
					return fmt.Errorf("%d, want %d", set.Status.UninjectedPods, admitted)
				}
				return nil
			})
			testkit.Report(t, "uninjectedPods=%d counted %s after recovery", admitted, testkit.Rounded(time.Since(begin)))
		})
	}
}

// checkUnselected creates Pods that no SidecarSet selects, and fails the test if an API
// server called a webhook for them.
func checkUnselected(t *testing.T, namespace string) {
	t.Helper()
	before := webhookCalls(t)
	indices := make([]int, testkit.Scaled(60, 1000))
	for i := range indices {
		indices[i] = i
	}
	begin := time.Now()
	err := testkit.Each(indices, 8, func(i int) error {
		_, err := clients[i%len(clients)].CoreV1().Pods(namespace).Create(t.Context(), testkit.NewPod(testkit.AppLabels("other")), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		t.Errorf("Pods that no SidecarSet selects: %v", err)
	}
	calls := webhookCalls(t) - before
	testkit.Report(t, "unselected=%d webhook-calls=%.0f in %s", len(indices), calls, testkit.Rounded(time.Since(begin)))
	if calls != 0 {
		t.Errorf("API servers called webhooks %.0f times for Pods that no SidecarSet selects", calls)
	}
}

// checkRefused creates a Pod, and fails the test unless each API server refuses it.
func checkRefused(t *testing.T, namespace, sidecarSet string) {
	t.Helper()
	before := webhookCalls(t)
	for _, client := range clients {
		// If the API server does not keep to the webhook's timeout, this timeout ends the wait.
		ctx, cancel := context.WithTimeout(t.Context(), 2*timeoutSeconds*time.Second+10*time.Second)
		begin := time.Now()
		_, err := client.CoreV1().Pods(namespace).Create(ctx, testkit.NewPod(testkit.AppLabels(sidecarSet)), metav1.CreateOptions{})
		cancel()
		if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), ".pods.sidecarset.io") {
			t.Errorf("a Pod that no replica can inject: %v, want a refusal that names the webhook", err)
		}
		testkit.Report(t, "refused after %s: %v", testkit.Rounded(time.Since(begin)), err)
	}
	if webhookCalls(t) == before {
		t.Error("the metrics of API servers do not show a call that was tried")
	}
}

// checkAdmitted creates Pods whose SidecarSet says Ignore, and fails the test unless they
// are created without sidecars.
func checkAdmitted(t *testing.T, namespace, sidecarSet string, count int) {
	t.Helper()
	for i := range count {
		pod, err := clients[i%len(clients)].CoreV1().Pods(namespace).Create(t.Context(), testkit.NewPod(testkit.AppLabels(sidecarSet)), metav1.CreateOptions{})
		if err != nil {
			t.Errorf("a Pod whose SidecarSet says Ignore: %v", err)
		} else if !testkit.Injected(pod, nil) {
			t.Errorf("a Pod has the containers %v, though no replica could inject", pod.Spec.Containers)
		}
	}
}

// webhookCalls is how often API servers have called a webhook for a Pod, or tried to.
func webhookCalls(t *testing.T) float64 {
	t.Helper()
	var total float64
	for i := range clients {
		text := metricsOf(t, i)
		for _, name := range []string{
			"apiserver_admission_webhook_request_total", "apiserver_admission_webhook_admission_duration_seconds_count",
			"apiserver_admission_webhook_rejection_count", "apiserver_admission_webhook_fail_open_count",
		} {
			total += metric(t, text, name, ".pods.sidecarset.io")
		}
	}
	return total
}
