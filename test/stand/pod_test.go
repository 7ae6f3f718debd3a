package stand_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/test/await"
)

// meshed is a Pod with an app, a plain init container, a native sidecar and a
// plain sidecar.
func meshed() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "meshed"},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{
				{Name: "setup", Image: "setup:1"},
				{Name: "proxy", Image: "registry.test:5000/mesh/proxy:1", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)},
			},
			Containers: []corev1.Container{{Name: "app", Image: "app:1"}, {Name: "log", Image: "log:1"}},
		},
	}
}

func createPod(t *testing.T, ns string, pod *corev1.Pod) {
	t.Helper()
	if _, err := api(t).CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// awaitPod returns the Pod once it satisfies the probe.
func awaitPod(t *testing.T, ns, name, what string, probe func(*corev1.Pod) error) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	client := api(t)
	await.Eventually(t, what, func(ctx context.Context) (err error) {
		if pod, err = client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		return probe(pod)
	})
	return pod
}

func hasCondition(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

func isReady(pod *corev1.Pod) error {
	if hasCondition(pod, corev1.PodReady) && pod.Status.Phase == corev1.PodRunning {
		return nil
	}
	return fmt.Errorf("phase %s, conditions %+v, containers %+v", pod.Status.Phase, pod.Status.Conditions, pod.Status.ContainerStatuses)
}

func containerStatus(pod *corev1.Pod, name string) corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range list {
			if s.Name == name {
				return s
			}
		}
	}
	return corev1.ContainerStatus{}
}

func setImage(t *testing.T, ns, pod, path, image string) {
	t.Helper()
	patch := fmt.Sprintf(`[{"op": "replace", "path": "/spec/%s/image", "value": %q}]`, path, image)
	if _, err := api(t).CoreV1().Pods(ns).Patch(t.Context(), pod, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestNativeSidecarRunsAsAnInitContainer(t *testing.T) {
	ns := freshNamespace(t)
	createPod(t, ns, meshed())
	pod := awaitPod(t, ns, "meshed", "Ready", isReady)
	if s := containerStatus(pod, "proxy"); s.State.Running == nil || !s.Ready || s.Started == nil || !*s.Started {
		t.Errorf("the native sidecar does not run: %+v", s)
	}
	if s := containerStatus(pod, "setup"); s.State.Terminated == nil || s.State.Terminated.ExitCode != 0 || !s.Ready {
		t.Errorf("the init container has not completed: %+v", s)
	}
	if len(pod.Status.InitContainerStatuses) != 2 || len(pod.Status.ContainerStatuses) != 2 {
		t.Errorf("there are %d init container statuses and %d container statuses, want 2 and 2",
			len(pod.Status.InitContainerStatuses), len(pod.Status.ContainerStatuses))
	}
	if pod.Status.ObservedGeneration != pod.Generation {
		t.Errorf("observedGeneration is %d, generation %d", pod.Status.ObservedGeneration, pod.Generation)
	}
}

func TestInPlaceImageChangeIsFollowed(t *testing.T) {
	tests := map[string]struct {
		container, path, image, wantImageName string
		quiet                                 bool // the status never says that the Pod is not ready
	}{
		"of a native sidecar":          {"proxy", "initContainers/1", "registry.test:5000/mesh/proxy:2", "registry.test:5000/mesh/proxy@sha256:", false},
		"of a plain sidecar":           {"log", "containers/1", "log:2", "log@sha256:", false},
		"of a native sidecar, quietly": {"proxy", "initContainers/1", "registry.test:5000/mesh/proxy:2", "registry.test:5000/mesh/proxy@sha256:", true},
		"of a plain sidecar, quietly":  {"log", "containers/1", "log:2", "log@sha256:", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ns := freshNamespace(t)
			pod := meshed()
			if tc.quiet {
				pod.Annotations = map[string]string{"stand.test/restart": "quiet"}
			}
			createPod(t, ns, pod)
			before := awaitPod(t, ns, "meshed", "Ready", isReady)
			watch, err := api(t).CoreV1().Pods(ns).Watch(t.Context(), metav1.SingleObject(before.ObjectMeta))
			if err != nil {
				t.Fatal(err)
			}
			defer watch.Stop()
			setImage(t, ns, "meshed", tc.path, tc.image)

			wasUnready, announced := false, false
			var after *corev1.Pod
			for event := range watch.ResultChan() {
				pod := event.Object.(*corev1.Pod)
				ready := isReady(pod) == nil
				wasUnready = wasUnready || !ready
				if pod.Generation > before.Generation && pod.Status.ObservedGeneration == pod.Generation &&
					containerStatus(pod, tc.container).ContainerID == containerStatus(before, tc.container).ContainerID && ready {
					announced = true
				}
				if ready && containerStatus(pod, tc.container).Image == tc.image {
					after = pod
					break
				}
			}
			if after == nil {
				t.Fatal("the watch ended before the new image was Ready")
			}
			if wasUnready == tc.quiet {
				t.Errorf("the Pod was not ready for a while: %v, want %v", wasUnready, !tc.quiet)
			}
			if !announced {
				t.Error("no status says that the kubelet has seen the change while the old container runs")
			}
			was, is := containerStatus(before, tc.container), containerStatus(after, tc.container)
			if is.RestartCount != 1 || is.ImageID == was.ImageID || is.ContainerID == was.ContainerID {
				t.Errorf("the status went from %+v to %+v; want one restart, and new IDs", was, is)
			}
			if len(is.ImageID) != len(tc.wantImageName)+64 || is.ImageID[:len(tc.wantImageName)] != tc.wantImageName {
				t.Errorf("imageID is %q, want %s and a digest", is.ImageID, tc.wantImageName)
			}
			if was, is := containerStatus(before, "app"), containerStatus(after, "app"); is.RestartCount != 0 || is.ContainerID != was.ContainerID {
				t.Errorf("the app was touched: %+v, now %+v", was, is)
			}
			if after.Status.ObservedGeneration != after.Generation {
				t.Errorf("observedGeneration is %d, generation %d", after.Status.ObservedGeneration, after.Generation)
			}
		})
	}
}

func TestTagsOfOneImageHaveOneDigest(t *testing.T) {
	ns := freshNamespace(t)
	createPod(t, ns, meshed())
	awaitPod(t, ns, "meshed", "Ready", isReady)
	statusWith := func(image string) corev1.ContainerStatus {
		setImage(t, ns, "meshed", "containers/1", image)
		return containerStatus(awaitPod(t, ns, "meshed", image, func(pod *corev1.Pod) error {
			if s := containerStatus(pod, "log"); s.Image != image {
				return fmt.Errorf("it runs %s", s.Image)
			}
			return isReady(pod)
		}), "log")
	}
	first, second := statusWith("log:same-1"), statusWith("log:same-2")
	if first.ImageID != second.ImageID || first.ContainerID == second.ContainerID {
		t.Errorf("the status went from %+v to %+v; want another container of the same image", first, second)
	}
}

func TestMissingImageKeepsThePodUnready(t *testing.T) {
	ns := freshNamespace(t)
	createPod(t, ns, meshed())
	awaitPod(t, ns, "meshed", "Ready", isReady)
	setImage(t, ns, "meshed", "containers/1", "log:missing")
	awaitPod(t, ns, "meshed", "ImagePullBackOff", waitsFor("log", "ImagePullBackOff"))
	setImage(t, ns, "meshed", "containers/1", "log:3")
	pod := awaitPod(t, ns, "meshed", "Ready again", isReady)
	if s := containerStatus(pod, "log"); s.Image != "log:3" || s.RestartCount != 1 {
		t.Errorf("the container came back as %+v", s)
	}
}

func TestCrashingImageKeepsThePodUnready(t *testing.T) {
	ns := freshNamespace(t)
	createPod(t, ns, meshed())
	awaitPod(t, ns, "meshed", "Ready", isReady)
	setImage(t, ns, "meshed", "containers/1", "log:crash-1")
	pod := awaitPod(t, ns, "meshed", "CrashLoopBackOff", waitsFor("log", "CrashLoopBackOff"))
	if s := containerStatus(pod, "log"); s.Image != "log:crash-1" || s.Ready {
		t.Errorf("the container that crashes shows as %+v", s)
	}
	setImage(t, ns, "meshed", "containers/1", "log:3")
	awaitPod(t, ns, "meshed", "Ready again", isReady)
}

// Images that break some time after their start, in an injected sidecar and in the Pod's own.
func TestImagesBreakLater(t *testing.T) {
	tests := map[string]struct {
		image     string
		unready   string // the container that is not ready
		reason    string // why a container waits
		crashLoop bool
	}{
		"own readiness": {"log:breaks-1s", "log", "", false},
		"the app's":     {"log:breaks-app-1s", "app", "", false},
		"a crash":       {"log:crashes-1s", "log", "CrashLoopBackOff", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := freshNamespace(t)
			createPod(t, ns, meshed())
			awaitPod(t, ns, "meshed", "Ready", isReady)
			setImage(t, ns, "meshed", "containers/1", tc.image)
			awaitPod(t, ns, "meshed", tc.image+", not ready", func(pod *corev1.Pod) error {
				s, log := containerStatus(pod, tc.unready), containerStatus(pod, "log")
				if log.Image != tc.image || s.Ready || isReady(pod) == nil || (s.State.Running == nil) != tc.crashLoop {
					return isNotSo(pod)
				}
				if tc.crashLoop && (s.State.Waiting.Reason != tc.reason || s.RestartCount != 2) {
					return isNotSo(pod)
				}
				return nil
			})
			setImage(t, ns, "meshed", "containers/1", "log:3")
			awaitPod(t, ns, "meshed", "Ready with a good image", func(pod *corev1.Pod) error {
				if containerStatus(pod, "log").Image != "log:3" {
					return isNotSo(pod)
				}
				return isReady(pod)
			})
		})
	}
}

func isNotSo(pod *corev1.Pod) error {
	return fmt.Errorf("conditions %+v, containers %+v", pod.Status.Conditions, pod.Status.ContainerStatuses)
}

// A node that ignores updates shows neither their generation nor their image.
func TestANodeCanIgnoreUpdates(t *testing.T) {
	ns := freshNamespace(t)
	ignoring := meshed()
	ignoring.Annotations = map[string]string{"stand.test/updates": "ignored"}
	follows := meshed()
	follows.Name = "follows"
	createPod(t, ns, ignoring)
	createPod(t, ns, follows)
	for _, name := range []string{"meshed", "follows"} {
		awaitPod(t, ns, name, "Ready", isReady)
		setImage(t, ns, name, "containers/1", "log:2")
	}
	awaitPod(t, ns, "follows", "the new image", func(pod *corev1.Pod) error {
		if containerStatus(pod, "log").Image != "log:2" {
			return isNotSo(pod)
		}
		return isReady(pod)
	})
	pod := awaitPod(t, ns, "meshed", "Ready", isReady)
	if s := containerStatus(pod, "log"); s.Image != "log:1" || pod.Status.ObservedGeneration == pod.Generation {
		t.Errorf("the status of generation %d of %d has the image %s, want the one before the update", pod.Status.ObservedGeneration, pod.Generation, s.Image)
	}
}

func TestNewPodWithAMissingImageStaysPending(t *testing.T) {
	ns := freshNamespace(t)
	pod := meshed()
	pod.Spec.Containers[0].Image = "app:missing"
	createPod(t, ns, pod)
	got := awaitPod(t, ns, "meshed", "ImagePullBackOff", waitsFor("app", "ImagePullBackOff"))
	if got.Status.Phase != corev1.PodPending {
		t.Errorf("the phase is %s, want Pending", got.Status.Phase)
	}
	setImage(t, ns, "meshed", "containers/0", "app:2")
	awaitPod(t, ns, "meshed", "Ready", isReady)
}

func waitsFor(container, reason string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if s := containerStatus(pod, container); s.State.Waiting == nil || s.State.Waiting.Reason != reason {
			return fmt.Errorf("its state is %+v", s.State)
		}
		if isReady(pod) == nil {
			return errors.New("the Pod is Ready")
		}
		return nil
	}
}

func TestReadinessGateDecidesReady(t *testing.T) {
	ns, client := freshNamespace(t), api(t)
	pod := meshed()
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "test/gate"}}
	createPod(t, ns, pod)
	awaitPod(t, ns, "meshed", "containers ready, Pod not", func(pod *corev1.Pod) error {
		if !hasCondition(pod, corev1.ContainersReady) || hasCondition(pod, corev1.PodReady) {
			return fmt.Errorf("conditions are %+v", pod.Status.Conditions)
		}
		return nil
	})
	patch := `{"status": {"conditions": [{"type": "test/gate", "status": "True"}]}}`
	if _, err := client.CoreV1().Pods(ns).Patch(t.Context(), "meshed", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	awaitPod(t, ns, "meshed", "Ready", isReady)
}

func TestJobCompletes(t *testing.T) {
	ns, client := freshNamespace(t), api(t)
	spec := meshed().Spec
	spec.RestartPolicy = corev1.RestartPolicyNever
	_, err := client.BatchV1().Jobs(ns).Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "once"},
		Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: spec}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "the Job succeeds", func(ctx context.Context) error {
		job, err := client.BatchV1().Jobs(ns).Get(ctx, "once", metav1.GetOptions{})
		if err == nil && (job.Status.Succeeded != 1 || job.Status.CompletionTime == nil) {
			err = fmt.Errorf("its status is %+v", job.Status)
		}
		return err
	})
}

func TestDeletedPodGoesBeforeItsGracePeriodEnds(t *testing.T) {
	ns, client := freshNamespace(t), api(t)
	pod := meshed()
	pod.Spec.TerminationGracePeriodSeconds = new(int64(300))
	createPod(t, ns, pod)
	awaitPod(t, ns, "meshed", "Ready", isReady)
	if err := client.CoreV1().Pods(ns).Delete(t.Context(), "meshed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "the Pod is gone", func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = errors.New("it is there")
		}
		return err
	})
}
