package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/health"
	"github.com/sidecarset/operator/test/testkit"
)

// awaitHealth waits until kstatus and the health check for Argo CD read the SidecarSet so, and its
// rollout has that reason in Progressing.
func (f *fleet) awaitHealth(t *testing.T, kstatus, argo, progressing string) {
	t.Helper()
	await.Within(t, rolloutPatience, fmt.Sprintf("kstatus %s and %s while the rollout is %s", kstatus, argo, progressing), func(ctx context.Context) error {
		set := &unstructured.Unstructured{}
		set.SetGroupVersionKind(appsv1beta1.Kind)
		if err := api.Get(ctx, client.ObjectKey{Name: f.set.GetName()}, set); err != nil {
			return err
		}
		byKstatus, err := health.Kstatus(set)
		if err != nil {
			return err
		}
		byArgo, err := health.Argo(set)
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(set.Object, "status", "conditions")
		for _, c := range conditions {
			c := c.(map[string]any)
			if c["type"] == "Progressing" && c["reason"] == progressing && c["observedGeneration"] == set.GetGeneration() && byKstatus == kstatus && byArgo == argo {
				return nil
			}
		}
		return fmt.Errorf("%s, %s; %v", byKstatus, byArgo, conditions)
	})
}

// A SidecarSet is Current as soon as new Pods are right, in whatever state its rollout is.
func TestKstatusDoesNotWaitForRunningPods(t *testing.T) {
	t.Parallel()
	const pods = 4
	f := newFleet(t, strings.Replace(rolling, "maxUnavailable: 2", "maxUnavailable: 1", 1), pods, &testkit.Kubelet{
		Pull:    8 * time.Second, // so that the rollout is not over before it is paused
		Missing: func(image string) bool { return strings.HasSuffix(image, ":missing") },
	})
	f.awaitHealth(t, "Current", "Healthy", "Complete")
	f.setImage(t, "example.com/side:v2")
	f.awaitHealth(t, "Current", "Progressing", "RollingOut")
	f.setStrategy(t, map[string]any{"paused": true})
	f.awaitHealth(t, "Current", "Suspended", "Paused")
	f.setStrategy(t, map[string]any{"paused": false, "partition": pods - 1})
	f.awaitHealth(t, "Current", "Healthy", "PartitionReached")
	f.setStrategy(t, map[string]any{"type": "NotUpdate"})
	f.awaitHealth(t, "Current", "Healthy", "NotUpdate")
	f.update(t, map[string]any{"injectionStrategy": map[string]any{"paused": true}})
	f.awaitHealth(t, "Current", "Suspended", "NotUpdate")
	f.update(t, map[string]any{"injectionStrategy": map[string]any{"paused": false}, "updateStrategy": map[string]any{"type": "RollingUpdate", "partition": nil}})
	f.awaitHealth(t, "Current", "Healthy", "Complete")

	f.setImage(t, "example.com/side:missing")
	f.awaitHealth(t, "Current", "Degraded", "RollingOut") // the sidecar of the updated Pod does not run
	f.setStrategy(t, map[string]any{"paused": true})
	f.awaitHealth(t, "Failed", "Degraded", "Paused")
}
