package clustertest

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/doctor"
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
