package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/stand"
)

// counters are the numbers of a status.
type counters struct{ Matched, Updated, Ready, UpdatedReady, Uninjected int32 }

// awaitCounters waits for the counters of a SidecarSet.
func awaitCounters(t *testing.T, set *unstructured.Unstructured, want counters) {
	t.Helper()
	stand.Eventually(t, fmt.Sprintf("counters of SidecarSet %s", set.GetName()), func(ctx context.Context) error {
		status, err := statusOf(ctx, set.GetName())
		if err != nil {
			return err
		}
		got := counters{status.MatchedPods, status.UpdatedPods, status.ReadyPods, status.UpdatedReadyPods, status.UninjectedPods}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
}

// patch applies a merge patch.
func patch(t *testing.T, object client.Object, change any) {
	t.Helper()
	body, err := json.Marshal(change)
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Patch(t.Context(), object, client.RawPatch(types.MergePatchType, body)); err != nil {
		t.Fatal(err)
	}
}

func relabel(t *testing.T, object client.Object, labels map[string]any) {
	t.Helper()
	patch(t, object, map[string]any{"metadata": map[string]any{"labels": labels}})
}

// run writes the status that a kubelet would write for a Pod that runs.
func run(t *testing.T, p *corev1.Pod) {
	t.Helper()
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, c := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image + "@sha256:00", Ready: true})
	}
	if err := api.Status().Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

func TestStatusFollowsPods(t *testing.T) {
	for _, strategy := range []string{"NotUpdate", "RollingUpdate"} {
		t.Run(strategy, func(t *testing.T) {
			namespace := newNamespace(t, nil)
			early := pod(namespace, "early", "app=web")
			create(t, early)
			set := createSidecarSet(t, namespace, `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
updateStrategy: {type: `+strategy+`}
containers: [{name: side, image: "example.com/side:v1"}]
`)
			awaitCounters(t, set, counters{Uninjected: 1})

			awaitInjected(t, set, namespace, "app=web")
			var pods []*corev1.Pod
			for i := range 4 {
				p := pod(namespace, fmt.Sprintf("p-%d", i), "app=web")
				create(t, p)
				pods = append(pods, p)
			}
			awaitCounters(t, set, counters{Matched: 4, Updated: 4, Uninjected: 1})

			for _, p := range pods {
				run(t, p)
			}
			awaitCounters(t, set, counters{4, 4, 4, 4, 1})

			relabel(t, pods[0], map[string]any{"app": "other"})
			awaitCounters(t, set, counters{3, 3, 3, 3, 1})
			relabel(t, pods[0], map[string]any{"app": "web"})
			relabel(t, early, map[string]any{"app": nil})
			awaitCounters(t, set, counters{4, 4, 4, 4, 0})

			patch(t, set, map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "side", "image": "example.com/side:v2"}}}})
			awaitCounters(t, set, counters{Matched: 4, Ready: 4})

			if err := api.Delete(t.Context(), pods[0], client.GracePeriodSeconds(0)); err != nil {
				t.Fatal(err)
			}
			if err := api.Delete(t.Context(), pods[1]); err != nil {
				t.Fatal(err)
			}
			awaitCounters(t, set, counters{Matched: 2, Ready: 2})

			pods[2].Status.Phase = corev1.PodSucceeded
			if err := api.Status().Update(t.Context(), pods[2]); err != nil {
				t.Fatal(err)
			}
			awaitCounters(t, set, counters{Matched: 1, Ready: 1})
		})
	}
}

func TestStatusFollowsNamespaceLabels(t *testing.T) {
	namespace := newNamespace(t, map[string]string{"stage": "prod"})
	set := createSidecarSet(t, namespace, `
selector: {matchLabels: {app: staged}}
namespaceSelector: {matchLabels: {stage: prod}}
containers: [{name: side, image: "example.com/side:v1"}]
`)
	awaitInjected(t, set, namespace, "app=staged")
	for i := range 3 {
		p := pod(namespace, fmt.Sprintf("p-%d", i), "app=staged")
		create(t, p)
		run(t, p)
	}
	awaitCounters(t, set, counters{3, 3, 3, 3, 0})

	object := &corev1.Namespace{}
	object.Name = namespace
	relabel(t, object, map[string]any{"stage": "test"})
	awaitCounters(t, set, counters{})
	relabel(t, object, map[string]any{"stage": "prod"})
	awaitCounters(t, set, counters{3, 3, 3, 3, 0})
}

func TestStatusCountsPodsThatWerePassedBy(t *testing.T) {
	namespace := newNamespace(t, nil)
	set := createSidecarSet(t, namespace, `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
injectionStrategy: {paused: true}
containers: [{name: side, image: "example.com/side:v1"}]
`)
	create(t, pod(namespace, "p", "app=web"))
	awaitCounters(t, set, counters{Uninjected: 1})
}
