package integration

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

const hotUpgrading = `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
updateStrategy: {type: RollingUpdate, maxUnavailable: 2}
containers:
- name: side
  image: "example.com/side:v1"
  upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: "example.com/empty:v1"}
`

// Each Pod gets the new image in its idle container. When that runs, the other container gets
// the empty image. As in any rollout, the app's container is not restarted, and Pods are
// updated two at a time.
func TestAHotUpgradeGoesThroughRunningPods(t *testing.T) {
	t.Parallel()
	const pods = 6
	f := newFleet(t, hotUpgrading, pods, &testkit.Kubelet{Pull: 50 * time.Millisecond})
	watched := testkit.WatchDisturbed(t, api, f.namespace)
	for round, tc := range []struct{ image, working, idle string }{
		{"example.com/side:v2", "side-2", "side-1"},
		{"example.com/side:v3", "side-1", "side-2"},
	} {
		f.update(t, map[string]any{"containers": []any{map[string]any{
			"name": "side", "image": tc.image, "upgradeStrategy": map[string]any{"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "example.com/empty:v1"},
		}}})
		await.Within(t, rolloutPatience, "the end of the hot upgrades", func(context.Context) error {
			for _, p := range f.pods(t) {
				if got := testkit.WantedImage(&p, tc.working); got != tc.image {
					return fmt.Errorf("%s: %s has %s", p.Name, tc.working, got)
				}
				if got := testkit.WantedImage(&p, tc.idle); got != "example.com/empty:v1" {
					return fmt.Errorf("%s: %s has %s", p.Name, tc.idle, got)
				}
			}
			return nil
		})
		f.awaitCounters(t, pods, pods)
		for _, p := range f.pods(t) {
			if want := fmt.Sprintf(`{"side":%q}`, tc.working); p.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer] != want {
				t.Errorf("%s: the working container is %s, want %s", p.Name, p.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer], want)
			}
			version, alt := p.Annotations[appsv1beta1.AnnotationVersionPrefix+tc.working], p.Annotations[appsv1beta1.AnnotationVersionAltPrefix+tc.working]
			if version == "" || version == "0" || version == "1" || alt != "0" {
				t.Errorf("%s: %s has version %s and versionalt %s, want a resourceVersion and 0", p.Name, tc.working, version, alt)
			}
			if got := p.Annotations[appsv1beta1.AnnotationVersionPrefix+tc.idle]; got != "0" {
				t.Errorf("%s: %s has version %s, want 0", p.Name, tc.idle, got)
			}
		}
		await.Within(t, rolloutPatience, "one restart of either container in each round", func(context.Context) error {
			for _, p := range f.pods(t) {
				for _, s := range p.Status.ContainerStatuses {
					want := int32(round + 1)
					if s.Name == "app" {
						want = 0
					}
					if s.RestartCount != want {
						return fmt.Errorf("%s: container %s was started again %d times, want %d", p.Name, s.Name, s.RestartCount, want)
					}
				}
			}
			return nil
		})
	}
	watched.Want(t, 2, pods)
	for _, p := range f.pods(t) {
		awaitPodEvents(t, &p, slices.Repeat([]string{"Normal ResetContainerSucceed: reset sidecar container image empty successfully"}, 2))
	}
}

// awaitPodEvents waits for these Events about a Pod, as kubectl describe finds them.
func awaitPodEvents(t *testing.T, p *corev1.Pod, want []string) {
	t.Helper()
	await.Eventually(t, "the Events about "+p.Name, func(ctx context.Context) error {
		var list corev1.EventList
		about := fields.Set{"involvedObject.kind": "Pod", "involvedObject.name": p.Name, "involvedObject.uid": string(p.UID)}
		if err := api.List(ctx, &list, client.InNamespace(p.Namespace), client.MatchingFieldsSelector{Selector: about.AsSelector()}); err != nil {
			return err
		}
		if got := reasons(list.Items); !slices.Equal(got, want) {
			return fmt.Errorf("they are %q, want %q", got, want)
		}
		return nil
	})
}
