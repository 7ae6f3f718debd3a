package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// roll makes the operator update and resize native sidecars of running Pods. One of the Pods
// is on a Node that does not exist.
func (s *scenario) roll(t *testing.T) {
	t.Helper()
	s.sidecarSet(t, "native", `
selector: {matchLabels: {app: native}}
`+inNamespace+`
initContainers: [{name: side, image: "example.com/side:v1", restartPolicy: Always, resources: {requests: {cpu: 10m}}}]
`, nil)
	testkit.AwaitReady(t, s.api, "native")
	lost, free := pod("default", "on-a-lost-node", "app=native"), pod("default", "on-no-node", "app=native")
	lost.Spec.NodeName = "lost"
	free.Spec.TerminationGracePeriodSeconds = new(int64(0)) // with the default, the leader would wait longer for an update
	for _, p := range []*corev1.Pod{lost, free} {
		if err := s.api.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	set := &unstructured.Unstructured{}
	set.SetGroupVersionKind(appsv1beta1.Kind)
	set.SetName("native")
	patch := `[{"op": "replace", "path": "/spec/initContainers/0/image", "value": "example.com/side:v2"}]`
	if err := s.api.Patch(t.Context(), set, client.RawPatch(types.JSONPatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
	await.Within(t, rolloutPatience, "an update of one Pod", func(ctx context.Context) error {
		if err := s.api.Get(ctx, client.ObjectKeyFromObject(free), free); err != nil {
			return err
		}
		if image := testkit.WantedImage(free, "side"); image != "example.com/side:v2" {
			return fmt.Errorf("the image is %s", image)
		}
		return nil
	})
	await.Within(t, rolloutPatience, "a look at the Node", func(context.Context) error {
		for _, q := range requestsOf(t, s.installation) {
			if q.resource == "nodes" {
				return nil
			}
		}
		return errors.New("there was none")
	})
	if err := s.api.Get(t.Context(), client.ObjectKeyFromObject(lost), lost); err != nil {
		t.Fatal(err)
	}
	if image := testkit.WantedImage(lost, "side"); image != "example.com/side:v1" {
		t.Errorf("the sidecar on a Node that does not exist has got the image %s", image)
	}
	s.resize(t, set, free)
}

// resize makes the operator resize the native sidecar of a Pod.
func (s *scenario) resize(t *testing.T, set *unstructured.Unstructured, p *corev1.Pod) {
	t.Helper()
	patch := `[{"op": "replace", "path": "/spec/initContainers/0/resources", "value": {"requests": {"cpu": "20m"}}}]`
	if err := s.api.Patch(t.Context(), set, client.RawPatch(types.JSONPatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
	await.Within(t, rolloutPatience, "a resize", func(ctx context.Context) error {
		if err := s.api.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		for _, c := range p.Spec.InitContainers {
			if c.Name == "side" && c.Resources.Requests.Cpu().String() == "20m" {
				return nil
			}
		}
		return errors.New("the sidecar has the resources of before")
	})
	s.start(t, p)
	await.Within(t, rolloutPatience, "the condition of a Pod that is back", func(ctx context.Context) error {
		if err := s.api.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		return wantUpgradable(p, corev1.ConditionTrue, "AllSidecarsetUpgradable", map[string]bool{"native": true})
	})
}

// start writes the status that a kubelet would write for a Pod that runs.
func (s *scenario) start(t *testing.T, p *corev1.Pod) {
	t.Helper()
	statuses := func(containers []corev1.Container) (all []corev1.ContainerStatus) {
		for _, c := range containers {
			all = append(all, corev1.ContainerStatus{
				Name: c.Name, Image: c.Image, ImageID: c.Image + "@sha256:00", ContainerID: "test://" + c.Name, Ready: true, Started: new(true),
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, Resources: &c.Resources, AllocatedResources: c.Resources.Requests,
			})
		}
		return all
	}
	status, err := json.Marshal(map[string]any{"status": corev1.PodStatus{
		Phase: corev1.PodRunning, ObservedGeneration: p.Generation, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: statuses(p.Spec.Containers), InitContainerStatuses: statuses(p.Spec.InitContainers),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.api.Status().Patch(t.Context(), p, client.RawPatch(types.MergePatchType, status)); err != nil {
		t.Fatal(err)
	}
}
