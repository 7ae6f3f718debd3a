package chaos

import (
	"context"
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// A Pod that is created directly after its SidecarSet, or after a change of it, is injected.
// It does not matter through which API server each of them is written. Replicas read names
// and single SidecarSets for such a Pod, and do not list all SidecarSets.
func TestAPodBehindItsSidecarSetNeedsNoList(t *testing.T) {
	publishAPIServers(t) // so that the operator waits for both
	// Checks of the snapshot, on which trust depends, may take long on a busy machine.
	f := startReplicas(t, 2, append([]string{"--pod-webhook-snapshot-trust=10s"}, steadyLeases...)...)
	namespace := newNamespace(t)
	token := metricsToken(t, f)
	await.Eventually(t, "recorded names, after those that a new leader does not know", func(ctx context.Context) error {
		object, err := clients[0].AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, entryplan.ConfigurationName(entryplan.Provisional), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, ok := entryplan.Recent(object.Annotations); !ok {
			return errors.New("any SidecarSet may be on its way")
		}
		return nil
	})
	before, pods := lookups(t, f, token), watchMisses(t, f)
	for i := range 8 {
		name := fmt.Sprintf("behind-%d", i)
		set := testkit.NewPatientSet(name, namespace)
		t.Cleanup(func() {
			if err := deleteSet(context.WithoutCancel(t.Context()), name); err != nil {
				t.Error(err)
			}
		})
		warned, err := create(t.Context(), sets[i%len(sets)], set)
		if err != nil {
			t.Fatal(err)
		}
		for through := range clients {
			pod, err := clients[through].CoreV1().Pods(namespace).Create(t.Context(), testkit.NewPod(testkit.AppLabels(name)), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			pods.add(pod, warned, name)
		}
		if warned {
			testkit.AwaitReady(t, api, name)
		}
		mustChangeImage(t, name, "example.com/sidecar:v2")
		await.Eventually(t, "a Pod with the change", func(ctx context.Context) error {
			return testkit.TryPod(ctx, clients[i%len(clients)], namespace, name, "example.com/sidecar:v2")
		})
	}
	after := lookups(t, f, token)
	pods.check(t)
	testkit.Report(t, "%s; look-ups before: %v, after: %v", pods, before, after)
	if lists := after["list"] - before["list"]; lists > 2 {
		t.Errorf("replicas listed all SidecarSets %.0f times", lists)
	}
	if after["names"] == before["names"] { // replicas read single SidecarSets only if the watch is behind, which may never happen
		t.Error("no Pod was answered by names")
	}
}

// lookups counts live look-ups, by what was read.
func lookups(t *testing.T, f *fleet, token string) map[string]float64 {
	t.Helper()
	counts := map[string]float64{}
	for _, replica := range f.replicas {
		text, err := scrape(t.Context(), replica, token)
		if err != nil {
			t.Fatal(err)
		}
		for _, read := range []string{"names", "sidecarsets", "list"} {
			counts[read] += metric(t, text, "sidecarset_pod_webhook_lookups_total", fmt.Sprintf("read=%q", read))
		}
	}
	return counts
}
