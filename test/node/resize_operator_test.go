package node

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

const sized = setHead + `
  initContainers:
  - {name: native, image: "REGISTRY/NAME:v1", restartPolicy: Always, resources: {requests: {cpu: 10m, memory: 16Mi}}}
`

// setCPU changes what the native sidecar of a SidecarSet requests.
func setCPU(t *testing.T, name, cpu string) {
	t.Helper()
	change(t, name, map[string]string{nativeCPU: cpu})
}

// hasCPU returns a check that the native sidecar has got this CPU from the kubelet.
func hasCPU(cpu string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error { return resized(pod.Generation, "native", cpu)(pod) }
}

// awaitBlocked waits until the status says that a number of Pods are blocked for a reason, with
// a message.
func awaitBlocked(t *testing.T, name, reason string, pods int, message string) {
	t.Helper()
	await.Within(t, 2*await.Patience, "the blocked Pods of "+name, func(ctx context.Context) error {
		got, err := cluster.Kubectl(ctx, "", "get", "sidecarset", name, "-o", "jsonpath={range .status.blockedPods[*]}{.reason} {.pods} {.message};{end}")
		if err == nil && (!strings.HasPrefix(got, fmt.Sprintf("%s %d ", reason, pods)) || !strings.Contains(got, message)) {
			err = fmt.Errorf("blocked are %q, want %d for %s, and %q", got, pods, reason, message)
		}
		return err
	})
}

// If resources change in a SidecarSet, its Pods are resized: nothing restarts, and the Pods
// record the revision. If the node cannot do a resize, the status says so. If the user
// reverts the change, the operator reverts the resize.
func TestTheOperatorResizes(t *testing.T) {
	t.Parallel()
	const name = "sized"
	image(t, "sized:v1")
	before := startApp(t, name, sized, deployment, 3)
	check := func(cpu string) {
		t.Helper()
		awaitUpdated(t, name, 3)
		hash := func(key string) string {
			return testkit.Kubectl(t, cluster, "", "get", "sidecarset", name, "-o", fmt.Sprintf(`go-template={{index .metadata.annotations %q}}`, key))
		}
		for _, pod := range awaitPods(t, name, "resized", 3, hasCPU(cpu)) {
			was := same(t, before, &pod)
			unchanged(t, was, &pod, "native")
			unchanged(t, was, &pod, "app")
			for _, key := range []string{appsv1beta1.AnnotationHash, appsv1beta1.AnnotationHashWithoutImage} {
				if got, want := podstate.ParseHashes(pod.Annotations[key]).Hash(name), hash(key); got != want {
					t.Errorf("%s: %s is %s, want the SidecarSet's, %s", pod.Name, key, got, want)
				}
			}
		}
	}
	setCPU(t, name, "20m")
	check("20m")

	node, err := clients.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	setCPU(t, name, node.Status.Allocatable.Cpu().String())
	awaitBlocked(t, name, "ResizeDeferred", 3, "cpu")
	if cluster.Minor() >= 36 { // earlier API servers do not compare a resize with the node
		setCPU(t, name, "1000")
		awaitBlocked(t, name, "WriteRejected", 3, "cpu")
	}
	setCPU(t, name, "20m")
	check("20m")
	setCPU(t, name, "30m")
	check("30m")
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

func failedResize(pod *corev1.Pod) error {
	if c := condition(pod, corev1.PodResizeInProgress); c == nil || c.Reason != corev1.PodReasonError {
		return fmt.Errorf("PodResizeInProgress is %+v", c)
	}
	return nil
}
