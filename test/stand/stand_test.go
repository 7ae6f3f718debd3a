package stand_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

var api client.WithWatch

func TestMain(m *testing.M) {
	os.Exit(stand.Main(m, stand.Options{Full: true, Nodes: 1}, func(_ context.Context, c *stand.Cluster) (err error) {
		api, err = testkit.NewClient(c)
		return err
	}))
}

// Whether the stand is stopped, or its launcher is killed, as when a test binary crashes, no
// process remains. No suite would notice one.
func TestNoProcessOutlivesTheStand(t *testing.T) {
	for name, end := range map[string]func(*stand.Cluster) error{
		"stopped": (*stand.Cluster).Stop,
		"killed":  func(c *stand.Cluster) error { return syscall.Kill(c.Pid, syscall.SIGKILL) },
	} {
		t.Run(name, func(t *testing.T) {
			c, err := stand.Start(stand.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = c.Stop(), os.RemoveAll(c.Dir) })
			components, err := c.Components()
			if err != nil || len(components) != 2 {
				t.Fatalf("components are %v, %v; want etcd and one API server", components, err)
			}
			if err := end(c); err != nil {
				t.Fatal(err)
			}
			for _, component := range append(components, stand.Component{Name: "the launcher", Pid: c.Pid}) {
				await.Eventually(t, "the end of "+component.Name, func(context.Context) error {
					if syscall.Kill(component.Pid, 0) == nil {
						return fmt.Errorf("pid %d is there", component.Pid)
					}
					return nil
				})
			}
		})
	}
}

// A fake node follows the change of an image as a kubelet does. A stage that is wrong about this
// would let rollouts pass that fail on a real node.
func TestInPlaceImageChangeIsFollowed(t *testing.T) {
	tests := map[string]struct {
		container, path, image, imageID string
		quiet                           bool // the status never says that the Pod is not ready
	}{
		"of a native sidecar":         {"proxy", "initContainers/1", "registry.test:5000/mesh/proxy:2", "registry.test:5000/mesh/proxy@sha256:", false},
		"of a plain sidecar":          {"log", "containers/1", "log:2", "log@sha256:", false},
		"of a plain sidecar, quietly": {"log", "containers/1", "log:2", "log@sha256:", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := testkit.Namespace(t, api, nil)
			testkit.AwaitServiceAccount(t, api, ns)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "meshed"}, Spec: corev1.PodSpec{
				InitContainers: []corev1.Container{
					{Name: "setup", Image: "setup:1"},
					{Name: "proxy", Image: "registry.test:5000/mesh/proxy:1", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)},
				},
				Containers: []corev1.Container{{Name: "app", Image: "app:1"}, {Name: "log", Image: "log:1"}},
			}}
			if tc.quiet {
				pod.Annotations = map[string]string{"stand.test/restart": "quiet"}
			}
			if err := api.Create(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			before := &corev1.Pod{}
			await.Eventually(t, "Ready", func(ctx context.Context) error {
				if err := api.Get(ctx, client.ObjectKeyFromObject(pod), before); err != nil || isReady(before) {
					return err
				}
				return fmt.Errorf("the status is %+v", before.Status)
			})
			watch, err := api.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(ns), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: before.ResourceVersion}})
			if err != nil {
				t.Fatal(err)
			}
			defer watch.Stop()
			patch := fmt.Sprintf(`[{"op": "replace", "path": "/spec/%s/image", "value": %q}]`, tc.path, tc.image)
			if err := api.Patch(t.Context(), pod, client.RawPatch(types.JSONPatchType, []byte(patch))); err != nil {
				t.Fatal(err)
			}

			wasUnready, announced := false, false
			was, after := statusOf(before, tc.container), &corev1.Pod{}
			for event := range watch.ResultChan() {
				after = event.Object.(*corev1.Pod)
				wasUnready = wasUnready || !isReady(after)
				is, observed := statusOf(after, tc.container), after.Generation > before.Generation && after.Status.ObservedGeneration == after.Generation
				announced = announced || observed && isReady(after) && is.ContainerID == was.ContainerID
				if isReady(after) && is.Image == tc.image {
					break
				}
			}
			if wasUnready == tc.quiet {
				t.Errorf("the Pod was not ready for a while: %v, want %v", wasUnready, !tc.quiet)
			}
			if !announced {
				t.Error("no status says that the kubelet has seen the change while the old container runs")
			}
			is := statusOf(after, tc.container)
			if is.RestartCount != 1 || is.ImageID == was.ImageID || is.ContainerID == was.ContainerID || !strings.HasPrefix(is.ImageID, tc.imageID) {
				t.Errorf("the status went from %+v to %+v; want one restart, and new IDs", was, is)
			}
			if was, is := statusOf(before, "app"), statusOf(after, "app"); is.RestartCount != 0 || is.ContainerID != was.ContainerID {
				t.Errorf("the app was touched: %+v, now %+v", was, is)
			}
			if after.Status.ObservedGeneration != after.Generation {
				t.Errorf("observedGeneration is %d, generation %d", after.Status.ObservedGeneration, after.Generation)
			}
		})
	}
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func statusOf(pod *corev1.Pod, container string) (found corev1.ContainerStatus) {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if s.Name == container {
			found = s
		}
	}
	return found
}
