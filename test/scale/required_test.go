package scale

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// What a write costs with so many required SidecarSets, which take turns: a Pod that one of them selects, a Pod that
// none selects, and a ConfigMap.
func TestTheCostOfRequiredSidecarSets(t *testing.T) {
	r := begin(t)
	testkit.Kubectl(t, cluster, "", "apply", "--server-side", "-k", filepath.Join(deploy.Root(), "config/required"))
	counts := []int{0, 1, 10, 64}
	for i := range counts[len(counts)-1] {
		set := testkit.NewPatientSet(fmt.Sprint("cost-", i), r.namespace)
		labels := map[string]string{}
		for _, count := range counts {
			if i < count {
				labels[fmt.Sprint("of-", count)] = "true"
			}
		}
		set.SetLabels(labels)
		if err := r.api.Create(t.Context(), set); err != nil {
			t.Fatal(err)
		}
	}
	testkit.AwaitReady(t, r.api, "cost-0", "cost-63")
	clients, options := r.operator.Clients, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	pod := func(app string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := clients.CoreV1().Pods(r.namespace).Create(ctx, testkit.NewPod(testkit.AppLabels(app)), options)
			return err
		}
	}
	writes := []struct {
		name string
		do   func(context.Context) error
	}{{"selected Pod", pod("cost-0")}, {"unselected Pod", pod("nothing")}, {"ConfigMap", func(ctx context.Context) error {
		_, err := clients.CoreV1().ConfigMaps(r.namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "cost-"}}, options)
		return err
	}}}
	times := map[string][]time.Duration{}
	key := func(write string, count int) string { return fmt.Sprint(write, ", ", count) }
	for range 5 {
		for _, count := range counts {
			patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/paramRef/selector","value":{"matchLabels":{"of-%d":"true"}}}]`, count)
			if _, err := clients.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Patch(t.Context(), "sidecarset-required", types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			<-time.After(3 * time.Second) // API servers read bindings once a second
			for range 100 {
				for _, write := range writes {
					begin := time.Now()
					if err := write.do(t.Context()); err != nil {
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
