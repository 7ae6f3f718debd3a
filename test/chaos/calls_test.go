package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/test/testkit"
)

// An API server calls once for each entry that selects a Pod, and each replica may answer. One of
// two replicas hears of SidecarSets late. A Pod directly behind a change has the SidecarSet's new
// image and its new native sidecar, and not the one that the change has removed, whichever replica
// answers which call.
func TestNoCallForAPodUndoesAnother(t *testing.T) {
	proxy, args := startProxy(t)
	proxy.lag = lag{"sidecarsets", 400 * time.Millisecond}
	startReplicas(t, 1, steadyLeases...)
	startFleet(t, &fleet{args: append(args, steadyLeases...), serving: true}, 2, 1)
	namespace := newNamespace(t)
	var all []*unstructured.Unstructured
	labels := map[string]string{}
	for _, name := range []string{"call-a", "call-b", "call-c", "call-d"} { // in several slots
		labels[name] = "yes"
		all = append(all, testkit.NewSet(name, namespace, map[string]string{name: "yes"}))
	}
	createSets(t, all)
	for _, set := range all {
		testkit.AwaitReady(t, api, set.GetName())
	}
	const changed = "call-b"
	warnings, count := 0, testkit.Scaled(20, 200)
	for i := range count {
		has, lacks := fmt.Sprint("extra-", i), fmt.Sprint("extra-", i-1)
		change, err := json.Marshal([]any{
			map[string]any{"op": "replace", "path": "/spec/containers/0/image", "value": fmt.Sprint("example.com/sidecar:v", i+2)},
			map[string]any{"op": "add", "path": "/spec/initContainers", "value": []any{map[string]any{"name": has, "image": "example.com/sidecar:v1", "restartPolicy": "Always"}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		var warned atomic.Bool
		ctx := context.WithValue(t.Context(), warningHandler{}, &warned)
		if _, err := sets[0].Patch(ctx, changed, types.JSONPatchType, change, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if warned.Load() {
			warnings++
			continue
		}
		pod, err := clients[0].CoreV1().Pods(namespace).Create(t.Context(), testkit.NewPod(labels), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		names := testkit.ContainerNames(pod.Spec.InitContainers)
		if !slices.Contains(names, has) || slices.Contains(names, lacks) || testkit.WantedImage(pod, changed) != fmt.Sprint("example.com/sidecar:v", i+2) {
			t.Errorf("after change %d, a Pod has the native sidecars %q, and %s", i, names, testkit.WantedImage(pod, changed))
		}
	}
	testkit.Report(t, "changes=%d foretold=%d", count, warnings)
	if 2*warnings > count {
		t.Errorf("%d of %d changes were not in force when they were admitted", warnings, count)
	}
}
