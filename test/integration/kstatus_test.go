package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
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
	const pods = 6
	f := newFleet(t, strings.Replace(rolling, "maxUnavailable: 2", "maxUnavailable: 1", 1), pods, &testkit.Kubelet{
		Pull:    5 * time.Second,
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

// A container that is added makes Pods outdated. They are still matched, and the
// rollout is not complete before they have it.
func TestAnAddedNativeSidecarBlocksPods(t *testing.T) {
	t.Parallel()
	const pods = 3
	f := newFleet(t, rolling, pods, &testkit.Kubelet{Pull: 20 * time.Millisecond})
	f.update(t, map[string]any{"initContainers": []any{map[string]any{"name": "native", "image": "example.com/native:v1", "restartPolicy": "Always"}}})
	blocked := func() {
		t.Helper()
		f.await(t, "the blocked Pods", func(set *appsv1beta1.SidecarSet) error {
			c := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionProgressing)
			if c == nil || c.ObservedGeneration != set.Generation {
				return fmt.Errorf("Progressing is %+v", c)
			}
			if c.Reason == "Complete" {
				t.Fatalf("Progressing says %s: %s, although no Pod has the new sidecar", c.Reason, c.Message)
			}
			for _, group := range set.Status.BlockedPods {
				if group.Reason == "ImmutableFieldChanged" && group.Pods == pods && set.Status.MatchedPods == pods {
					return nil
				}
			}
			return fmt.Errorf("%d Pods are matched; blocked are %+v", set.Status.MatchedPods, set.Status.BlockedPods)
		})
	}
	blocked()
	f.setImage(t, "example.com/side:v2")
	blocked()
	f.update(t, map[string]any{"initContainers": nil})
	f.awaitCounters(t, pods, pods)
	f.awaitImages(t, "side", map[string]int{"example.com/side:v2": pods})
	f.awaitRollout(t, "Complete", "AsExpected")
}
