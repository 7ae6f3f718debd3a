package node

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/test/await"
)

// aPrecondition writes with an outdated resourceVersion, and fails the test unless the API
// server refuses it.
func aPrecondition(t *testing.T, earlier *corev1.Pod) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"spec":{"initContainers":[{"name":"native","resources":{"requests":{"cpu":"30m"}}}]}}`, earlier.ResourceVersion)
	_, err := clients.CoreV1().Pods(earlier.Namespace).Patch(t.Context(), earlier.Name, "application/strategic-merge-patch+json", []byte(patch), metav1.PatchOptions{}, "resize")
	if !apierrors.IsConflict(err) {
		t.Errorf("a resize with an old resourceVersion is answered with %v; want 409", err)
	}
}

// resize writes resources of a native sidecar, and returns the Pod as the API
// server answered.
func resize(t *testing.T, pod *corev1.Pod, container, resources string) *corev1.Pod {
	t.Helper()
	var after *corev1.Pod
	await.Eventually(t, "a resize between the writes of others", func(ctx context.Context) (err error) {
		pod = getPod(t, pod)
		patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"annotations":{"travels":"no"}},"spec":{"initContainers":[{"name":%q,"resources":%s}]}}`, pod.ResourceVersion, container, resources)
		after, err = clients.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, "application/strategic-merge-patch+json", []byte(patch), metav1.PatchOptions{}, "resize")
		if err != nil && !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
		return err
	})
	if after.Generation != pod.Generation+1 {
		t.Errorf("generation is %d after the resize, and was %d", after.Generation, pod.Generation)
	}
	if after.Annotations["travels"] != "" {
		t.Error("an annotation travelled with the resize")
	}
	return after
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// pending returns a check for PodResizePending with the reason.
func pending(reason string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if c := condition(pod, corev1.PodResizePending); c == nil || c.Reason != reason {
			return fmt.Errorf("PodResizePending is %+v, want the reason %s", c, reason)
		}
		return nil
	}
}

// resized returns a check that the status shows the end of a resize to this CPU.
func resized(generation int64, container, cpu string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if err := observed(generation)(pod); err != nil {
			return err
		}
		for _, kind := range []corev1.PodConditionType{corev1.PodResizePending, corev1.PodResizeInProgress} {
			if c := condition(pod, kind); c != nil {
				return fmt.Errorf("there is %+v", c)
			}
		}
		is := status(pod, container)
		if is.Resources == nil || is.Resources.Requests.Cpu().String() != cpu {
			return fmt.Errorf("the container's resources are %+v, want cpu %s", is.Resources, cpu)
		}
		return nil
	}
}

// If the node cannot do a resize now, the Pod stays as it is. A resize that fits is done without
// a restart. While a resize is pending, an image can change.
func TestAResize(t *testing.T) {
	t.Parallel()
	image(t, "resize:v1")
	image(t, "resize:v2", "VERSION=v2")
	before := startPod(t, `
metadata: {name: resize}
spec:
  initContainers:
  - {name: native, image: "REGISTRY/resize:v1", restartPolicy: Always, resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}}
  containers: [{name: app, image: "REGISTRY/app:1"}]
`)
	startPod(t, `
metadata: {name: resize-neighbour}
spec: {containers: [{name: app, image: "REGISTRY/app:1", resources: {requests: {cpu: 50m}}}]}
`)
	node, err := clients.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	whole := node.Status.Allocatable.Cpu().String()
	resize(t, before, "native", fmt.Sprintf(`{"requests":{"cpu":%q}}`, whole))
	deferred := awaitPod(t, before, "Deferred", pending(corev1.PodReasonDeferred))
	written := resize(t, before, "native", `{"requests":{"cpu":"20m"}}`)
	done := awaitPod(t, before, "resized", resized(written.Generation, "native", "20m"))
	aPrecondition(t, before)
	for _, pod := range []*corev1.Pod{deferred, done} {
		unchanged(t, before, pod, "native")
		unchanged(t, before, pod, "app")
		if err := isReady(pod); err != nil {
			t.Error(err)
		}
	}

	resize(t, before, "native", fmt.Sprintf(`{"requests":{"cpu":%q}}`, whole))
	setImages(t, before, images("resize:v2", "native"))
	after := awaitPod(t, before, "the new image runs", all(runsAnother(before, "native"), isReady, pending(corev1.PodReasonDeferred)))
	restartedOnce(t, after, "native")
	if is := status(after, "native"); is.Resources.Requests.Cpu().String() != "20m" {
		t.Errorf("after the image change it is %+v; want the resources that were allocated", is)
	}
	unchanged(t, before, after, "app")
}

// The API server refuses a resize that the node can never do: since Kubernetes 1.36 it compares
// a resize with the node's allocatable resources.
func TestAResizeBeyondTheNodeIsForbidden(t *testing.T) {
	t.Parallel()
	if cluster.Minor() < 36 {
		t.Skip("SKIP: the API server compares a resize with the node since Kubernetes 1.36")
	}
	image(t, "beyond:v1")
	pod := startPod(t, `
metadata: {name: beyond}
spec:
  initContainers: [{name: native, image: "REGISTRY/beyond:v1", restartPolicy: Always, resources: {requests: {cpu: 10m}}}]
  containers: [{name: app, image: "REGISTRY/app:1"}]
`)
	patch := `{"spec":{"initContainers":[{"name":"native","resources":{"requests":{"cpu":"1000"}}}]}}`
	_, err := clients.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, "application/strategic-merge-patch+json", []byte(patch), metav1.PatchOptions{}, "resize")
	if !apierrors.IsForbidden(err) {
		t.Errorf("it is answered with %v; want 403", err)
	}
}

// A resize that the node's policies exclude is infeasible. The Pod still runs.
func TestAnInfeasibleResize(t *testing.T) {
	t.Parallel()
	image(t, "infeasible:v1")
	before := startPod(t, `
metadata: {name: infeasible}
spec:
  initContainers:
  - {name: native, image: "REGISTRY/infeasible:v1", restartPolicy: Always, resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 10m, memory: 16Mi}}}
  containers:
  - {name: app, image: "REGISTRY/app:1", resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {cpu: 10m, memory: 16Mi}}}
`)
	resize(t, before, "native", `{"requests":{"cpu":"20m"},"limits":{"cpu":"20m"}}`)
	after := awaitPod(t, before, "Infeasible", pending(corev1.PodReasonInfeasible))
	unchanged(t, before, after, "native")
	if err := isReady(after); err != nil {
		t.Error(err)
	}
}

// The kubelet does not enforce a memory limit below what the container uses: the resize is in
// progress, with the reason Error, and the container still runs.
func TestAResizeBelowTheUsageIsAnError(t *testing.T) {
	t.Parallel()
	image(t, "usage:v1", "MEMORY=100", "PORT=8080")
	before := startPod(t, `
metadata: {name: usage}
spec:
  initContainers:
  - {name: native, image: "REGISTRY/usage:v1", restartPolicy: Always, resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 300Mi}}}
  containers: [{name: app, image: "REGISTRY/app:1"}]
`)
	awaitAnswer(t, before, 8080, "/version", "") // the program listens only when it uses the memory
	resize(t, before, "native", `{"limits":{"memory":"32Mi"}}`)
	failed := awaitPod(t, before, "an error", func(pod *corev1.Pod) error {
		if c := condition(pod, corev1.PodResizeInProgress); c == nil || c.Reason != corev1.PodReasonError {
			return fmt.Errorf("PodResizeInProgress is %+v", c)
		}
		return nil
	})
	unchanged(t, before, failed, "native")
	written := resize(t, before, "native", `{"limits":{"memory":"300Mi"},"requests":{"cpu":"20m"}}`)
	done := awaitPod(t, before, "repaired", resized(written.Generation, "native", "20m"))
	unchanged(t, before, done, "native")
}

// Where the resizePolicy says RestartContainer, a resize restarts this container
// and no other.
func TestAResizeThatRestarts(t *testing.T) {
	t.Parallel()
	image(t, "restarts:v1")
	before := startPod(t, `
metadata: {name: restarts}
spec:
  initContainers:
  - name: native
    image: "REGISTRY/restarts:v1"
    restartPolicy: Always
    resources: {requests: {cpu: 10m}}
    resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]
  containers: [{name: app, image: "REGISTRY/app:1"}]
`)
	written := resize(t, before, "native", `{"requests":{"cpu":"20m"}}`)
	after := awaitPod(t, before, "resized", resized(written.Generation, "native", "20m"))
	restartedOnce(t, after, "native")
	unchanged(t, before, after, "app")
}
