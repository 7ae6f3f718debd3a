package clustertest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/testkit"
)

// planned is what the tests read of a plan.
type planned struct {
	SidecarSets []struct {
		Action   string
		Warnings []string
		Pods     []struct {
			Outcome, Reason, Message string
			Pods                     int
		}
		Partition int
	}
}

// plan plans a manifest, in which it replaces NS.
func plan(t *testing.T, namespace, manifest string, wantCode int, args ...string) (planned, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sidecarset.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(manifest, "NS", namespace)), 0o600); err != nil {
		t.Fatal(err)
	}
	text, code := kubectl(t, append(args, "plan", "-f", file, "-o", "json")...)
	if code != wantCode {
		t.Fatalf("exit code %d, want %d:\n%s", code, wantCode, text)
	}
	var p planned
	if err := json.Unmarshal([]byte(text), &p); err != nil || len(p.SidecarSets) != 1 {
		t.Fatalf("%v:\n%s", err, text)
	}
	return p, text
}

// written counts the Pods of a namespace that the leader has written.
func written(ctx context.Context, t *testing.T, namespace string) (n int) {
	t.Helper()
	list := &corev1.PodList{}
	if err := api.List(ctx, list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if _, is := list.Items[i].Annotations[appsv1beta1.AnnotationInPlace]; is {
			n++
		}
	}
	return n
}

// The leader then moves as many Pods as the plan says.
func TestThePlanIsWhatTheLeaderThenDoes(t *testing.T) {
	t.Parallel()
	strategy := "  updateStrategy: {maxUnavailable: 2, partition: 2}\n"
	name := app(t, 6, strategy)
	change := strings.ReplaceAll(sidecarSet, "log-agent:v1", "log-agent:v2") + strategy
	if _, text := plan(t, name, sidecarSet+strategy, 0); !strings.Contains(text, `"action": "none"`) {
		t.Errorf("the stored SidecarSet: %s", text)
	}
	p, text := plan(t, name, change, 2)
	sum := p.SidecarSets[0].Pods[0].Pods - p.SidecarSets[0].Partition
	if !strings.Contains(text, `"InPlace"`) || sum != 4 {
		t.Fatalf("the plan is\n%s", text)
	}
	if moved := written(t.Context(), t, name); moved > 0 {
		t.Fatalf("planning has moved %d Pods", moved)
	}
	apply(t, name, change)
	awaitProgress(t, name, appsv1beta1.ReasonPartitionReached)
	if moved := written(t.Context(), t, name); moved != sum {
		t.Errorf("planned %d Pods, moved %d", sum, moved)
	}
}

// awaitProgress waits until the condition Progressing has that reason.
func awaitProgress(t *testing.T, name, reason string) {
	t.Helper()
	testkit.Kubectl(t, cluster, "", "wait", "sidecarset/"+name, "--timeout=180s", `--for=jsonpath={.status.conditions[?(@.type=="Progressing")].reason}=`+reason)
}
