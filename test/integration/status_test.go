package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/testkit"
)

// patch applies a merge patch.
func patch(t *testing.T, object client.Object, change any) {
	t.Helper()
	body, err := json.Marshal(change)
	if err != nil {
		t.Fatal(err)
	}
	insist(t, func(ctx context.Context) error {
		return api.Patch(ctx, object, client.RawPatch(types.MergePatchType, body))
	})
}

func relabel(t *testing.T, object client.Object, labels map[string]any) {
	t.Helper()
	patch(t, object, map[string]any{"metadata": map[string]any{"labels": labels}})
}

// run writes the status that a kubelet would write for a Pod that runs.
func run(t *testing.T, p *corev1.Pod) {
	t.Helper()
	setStatus(t, p, func() {
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		for _, c := range p.Spec.Containers {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image + "@sha256:00", Ready: true})
		}
	})
}

// setStatus writes the result of change, even if another client has written the Pod.
func setStatus(t *testing.T, p *corev1.Pod, change func()) {
	t.Helper()
	before := p.DeepCopy()
	change()
	if err := api.Status().Patch(t.Context(), p, client.StrategicMergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

func TestStatusFollowsPods(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	early := pod(namespace, "early", "app=web")
	create(t, early)
	set := createSidecarSet(t, namespace, `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
updateStrategy: {type: RollingUpdate, paused: true}
containers: [{name: side, image: "example.com/side:v1"}]
`)
	testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{Uninjected: 1})

	awaitInjected(t, set, namespace, "app=web")
	var pods []*corev1.Pod
	for i := range 4 {
		p := pod(namespace, fmt.Sprintf("p-%d", i), "app=web")
		create(t, p)
		pods = append(pods, p)
	}
	testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{Matched: 4, Updated: 4, Uninjected: 1})

	for _, p := range pods {
		run(t, p)
	}
	testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{Matched: 4, Updated: 4, Ready: 4, UpdatedReady: 4, Uninjected: 1})

	relabel(t, pods[0], map[string]any{"app": "other"})
	testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{Matched: 3, Updated: 3, Ready: 3, UpdatedReady: 3, Uninjected: 1})
	relabel(t, pods[0], map[string]any{"app": "web"})
	relabel(t, early, map[string]any{"app": nil})
	testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{Matched: 4, Updated: 4, Ready: 4, UpdatedReady: 4})

	patch(t, set, map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "side", "image": "example.com/side:v2"}}}})
	testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{Matched: 4, Ready: 4})

	if err := api.Delete(t.Context(), pods[0], client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(t.Context(), pods[1]); err != nil {
		t.Fatal(err)
	}
	testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{Matched: 2, Ready: 2})

	setStatus(t, pods[2], func() { pods[2].Status.Phase = corev1.PodSucceeded })
	testkit.AwaitCounters(t, api, set.GetName(), testkit.Counters{Matched: 1, Ready: 1})
}
