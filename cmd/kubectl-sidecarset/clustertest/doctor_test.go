package clustertest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/doctor"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

func TestDoctorOfAHealthyInstallation(t *testing.T) {
	app(t, 1, "")
	out, code := kubectl(t, "doctor", "--wait=1m", "-o", "json")
	if code != 0 {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	var results []doctor.Result
	if err := json.Unmarshal([]byte(out), &results); err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		// The processes of the operator are no Pods here.
		if len(r.Skipped) > 0 && r.Check != "replicas" {
			t.Errorf("check %s was skipped: %q", r.Check, r.Skipped)
		}
	}
}

// finds waits until doctor says something with all these parts in one line.
func finds(t *testing.T, parts ...string) {
	t.Helper()
	await.Eventually(t, "the finding", func(context.Context) error {
		out, code := kubectl(t, "doctor", "-o", "short")
		for line := range strings.Lines(out) {
			missing := ""
			for _, part := range parts {
				if !strings.Contains(line, part) {
					missing = part
				}
			}
			if missing == "" && code == 2 {
				return nil
			}
		}
		return fmt.Errorf("exit code %d:\n%s", code, out)
	})
}

// A quota that leaves no room for the sidecar is found in the second namespace of a SidecarSet, too.
func TestDoctorFindsAQuotaThatIsUsedUp(t *testing.T) {
	name, second := selectedNamespace(t), selectedNamespace(t)
	apply(t, name, strings.Replace(sidecarSet, "matchLabels: {kubernetes.io/metadata.name: NS}",
		"matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [NS, "+second+"]}]", 1))
	testkit.AwaitReady(t, api, name)
	for _, namespace := range []string{name, second} {
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "few"}}
		quota.Spec.Hard = corev1.ResourceList{corev1.ResourceLimitsMemory: resource.MustParse("1Gi")} // log-agent has no limit
		if err := api.Create(t.Context(), quota); err != nil {
			t.Fatal(err)
		}
	}
	finds(t, "ERROR", "injection: SidecarSet "+name+" in namespace "+second, "limits.memory for: log-agent")
}

func TestMigrateLooksAtTheCluster(t *testing.T) {
	name := app(t, 0, "")
	if err := api.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"control-plane":"x"}}}`))); err != nil {
		t.Fatal(err)
	}
	out, code := kubectl(t, "migrate")
	if want := "Namespace " + name + ": has the label control-plane"; code != 2 || !strings.Contains(out, want) || !strings.Contains(out, "kubectl apply -k .") {
		t.Errorf("exit code %d, want 2 and %q:\n%s", code, want, out)
	}
}
