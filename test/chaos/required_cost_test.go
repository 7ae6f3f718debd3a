package chaos

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/test/testkit"
)

// What a write costs with so many required SidecarSets, interleaved, through both API servers in turn:
// a Pod that one of them selects, a Pod that none selects, and a ConfigMap.
func TestTheCostOfRequiredSidecarSets(t *testing.T) {
	if os.Getenv("CHAOS") != "long" {
		t.Skip("SKIP: it measures, and takes minutes; set CHAOS=long")
	}
	startControllers(t, 1)
	replicas := startReplicas(t, 1, "--role=webhook")
	namespace := newNamespace(t)
	installRequired(t)
	counts := []int{0, 1, 10, 64}
	var all []*unstructured.Unstructured
	for i := range counts[len(counts)-1] {
		set := testkit.NewPatientSet(fmt.Sprint("cost-", i), namespace)
		labels := map[string]string{}
		for _, count := range counts {
			if i < count {
				labels[fmt.Sprint("of-", count)] = "true"
			}
		}
		set.SetLabels(labels)
		all = append(all, set)
	}
	createSets(t, all)
	testkit.AwaitReady(t, api, "cost-0", "cost-63")
	awaitInjection(t, replicas, namespace, "cost-0", 5)
	options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	pod := func(app string) func(context.Context, int) error {
		return func(ctx context.Context, i int) error {
			_, err := clients[i].CoreV1().Pods(namespace).Create(ctx, testkit.NewPod(testkit.AppLabels(app)), options)
			return err
		}
	}
	writes := []struct {
		name string
		do   func(context.Context, int) error
	}{{"selected Pod", pod("cost-0")}, {"unselected Pod", pod("nothing")}, {"ConfigMap", func(ctx context.Context, i int) error {
		_, err := clients[i].CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "cost-"}}, options)
		return err
	}}}
	times := map[string][]time.Duration{}
	key := func(write string, count int) string { return fmt.Sprint(write, ", ", count) }
	for range 5 {
		for _, count := range counts {
			patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/paramRef/selector","value":{"matchLabels":{"of-%d":"true"}}}]`, count)
			if _, err := clients[0].AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Patch(t.Context(), "sidecarset-required", types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			wait(t.Context(), 3*time.Second) // API servers read bindings once a second
			for i := range 100 {
				for _, write := range writes {
					begin := time.Now()
					if err := write.do(t.Context(), i%len(clients)); err != nil {
						t.Fatal(err)
					}
					times[key(write.name, count)] = append(times[key(write.name, count)], time.Since(begin))
				}
			}
		}
	}
	for _, write := range writes {
		var line []string
		for _, count := range counts {
			line = append(line, fmt.Sprintf("%d required: p50=%s", count, testkit.Rounded(testkit.Quantile(times[key(write.name, count)], 0.5))))
		}
		testkit.Report(t, "%s: %s", write.name, strings.Join(line, ", "))
	}
}
