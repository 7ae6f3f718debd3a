package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/test/await"
)

// image pushes an image of the test program with the environment, and returns its name. Each
// test has repositories of its own. Images are different, unless their environments are equal
// and contain SAME. If one image had two names by accident, the status of all its containers
// would change.
func image(t *testing.T, name string, env ...string) string {
	t.Helper()
	if !strings.Contains(strings.Join(env, ","), "SAME=") {
		env = append(env, "NAME="+name)
	}
	args := []string{"program", "--program=" + machine.file("program")}
	for _, e := range env {
		args = append(args, "--env="+e)
	}
	if err := machine.push(t.Context(), name, args...); err != nil {
		t.Fatal(err)
	}
	return registry + "/" + name
}

// startPod creates a Pod from YAML, in which it replaces REGISTRY by the registry, and
// waits until the Pod is Ready.
func startPod(t *testing.T, manifest string) *corev1.Pod {
	t.Helper()
	pod := createPod(t, manifest)
	awaitPod(t, pod, "Ready", isReady)
	return getPod(t, pod)
}

func createPod(t *testing.T, manifest string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(manifest, "REGISTRY", registry)), pod); err != nil {
		t.Fatal(err)
	}
	pod.Namespace = cmp.Or(pod.Namespace, "default")
	pod, err := clients.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if t.Failed() {
			describe(ctx, t, pod)
		}
		_ = clients.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	})
	return pod
}

func describe(ctx context.Context, t *testing.T, pod *corev1.Pod) {
	said, _ := cluster.Kubectl(ctx, "", "-n", pod.Namespace, "describe", "pod", pod.Name)
	status, _ := cluster.Kubectl(ctx, "", "-n", pod.Namespace, "get", "pod", pod.Name, "-o", "jsonpath={.metadata.generation} {.status}")
	t.Logf("%s\n%s", said, status)
}

func getPod(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	pod, err := clients.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// awaitPod waits until check returns nil, and returns the Pod.
func awaitPod(t *testing.T, pod *corev1.Pod, what string, check func(*corev1.Pod) error) *corev1.Pod {
	t.Helper()
	var last *corev1.Pod
	await.Within(t, 2*await.Patience, fmt.Sprintf("Pod %s: %s", pod.Name, what), func(ctx context.Context) error {
		now, err := clients.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		last = now
		return check(now)
	})
	return last
}

func isReady(pod *corev1.Pod) error {
	if ready(pod).Status != corev1.ConditionTrue {
		return fmt.Errorf("phase %s, condition %v, containers %v", pod.Status.Phase, ready(pod), pod.Status.ContainerStatuses)
	}
	return nil
}

func isNotReady(pod *corev1.Pod) error {
	if ready(pod).Status != corev1.ConditionFalse {
		return fmt.Errorf("Ready is %q", ready(pod).Status)
	}
	return nil
}

func ready(pod *corev1.Pod) corev1.PodCondition {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition
		}
	}
	return corev1.PodCondition{}
}

// status returns that of a container, native sidecars included.
func status(pod *corev1.Pod, container string) corev1.ContainerStatus {
	for _, all := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range all {
			if s.Name == container {
				return s
			}
		}
	}
	return corev1.ContainerStatus{}
}

// images gives containers the same image.
func images(name string, containers ...string) map[string]string {
	all := map[string]string{}
	for _, container := range containers {
		all[container] = registry + "/" + name
	}
	return all
}

// setImages changes images of a Pod in one write, as the executor does, and
// returns the Pod as the API server answered.
func setImages(t *testing.T, pod *corev1.Pod, images map[string]string) *corev1.Pod {
	t.Helper()
	pod = getPod(t, pod)
	var native, plain []string
	for _, c := range pod.Spec.InitContainers {
		if images[c.Name] != "" {
			native = append(native, fmt.Sprintf(`{"name":%q,"image":%q}`, c.Name, images[c.Name]))
		}
	}
	for _, c := range pod.Spec.Containers {
		if images[c.Name] != "" {
			plain = append(plain, fmt.Sprintf(`{"name":%q,"image":%q}`, c.Name, images[c.Name]))
		}
	}
	patch := fmt.Sprintf(`{"spec":{"initContainers":[%s],"containers":[%s]}}`, strings.Join(native, ","), strings.Join(plain, ","))
	after, err := clients.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, "application/strategic-merge-patch+json", []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if after.Generation != pod.Generation+1 {
		t.Errorf("generation is %d after the write, and was %d before; the record relies on one more", after.Generation, pod.Generation)
	}
	return after
}

// observed returns a check for a status that was computed from this generation.
func observed(generation int64) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if pod.Status.ObservedGeneration < generation {
			return fmt.Errorf("observedGeneration is %d, want %d", pod.Status.ObservedGeneration, generation)
		}
		return nil
	}
}

// runsAnother returns a check that each container runs and is not the one in before.
func runsAnother(before *corev1.Pod, containers ...string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) (err error) {
		for _, container := range containers {
			was, is := status(before, container), status(pod, container)
			if is.State.Running == nil || is.ContainerID == was.ContainerID || is.ContainerID == "" {
				err = errors.Join(err, fmt.Errorf("%s is %+v, and was %s", container, is, was.ContainerID))
			}
		}
		return err
	}
}

// all returns a check that passes if every check passes.
func all(checks ...func(*corev1.Pod) error) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) (err error) {
		for _, check := range checks {
			err = errors.Join(err, check(pod))
		}
		return err
	}
}

// restartedOnce fails the test if a container was not restarted exactly once.
func restartedOnce(t *testing.T, pod *corev1.Pod, containers ...string) {
	t.Helper()
	for _, container := range containers {
		if is := status(pod, container); is.RestartCount != 1 {
			t.Errorf("%s of %s was restarted %d times, want once: %+v", container, pod.Name, is.RestartCount, is)
		}
	}
}

// unchanged fails the test if the container was restarted.
func unchanged(t *testing.T, before, after *corev1.Pod, container string) {
	t.Helper()
	was, is := status(before, container), status(after, container)
	if is.ContainerID != was.ContainerID || is.RestartCount != was.RestartCount || is.State.Running == nil || was.State.Running == nil ||
		!is.State.Running.StartedAt.Equal(&was.State.Running.StartedAt) {
		t.Errorf("%s was to go on as it was:\n%+v\nbut is\n%+v", container, was, is)
	}
}

// closeGate keeps images of a repository from being pulled until it is opened, or
// the test ends.
func closeGate(t *testing.T, repository string) {
	t.Helper()
	if _, err := gate(t.Context(), http.MethodPut, repository); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = gate(context.WithoutCancel(t.Context()), http.MethodDelete, repository) })
}

func openGate(t *testing.T, repository string) {
	t.Helper()
	if _, err := gate(t.Context(), http.MethodDelete, repository); err != nil {
		t.Fatal(err)
	}
}

// awaitPull waits until a pull waits at the gate.
func awaitPull(t *testing.T, repository string) {
	t.Helper()
	await.Within(t, 2*await.Patience, "a pull of "+repository, func(ctx context.Context) error {
		waiting, err := gate(ctx, http.MethodGet, repository)
		if err == nil && waiting == "0" {
			err = fmt.Errorf("no request waits")
		}
		return err
	})
}

// programs is the client of the programs in containers. A later Pod may have the same address,
// so connections are not used again.
var programs = &http.Client{Timeout: await.Patience, Transport: &http.Transport{DisableKeepAlives: true}}

// ask sends a request to a container's program, at the Pod's address.
func ask(ctx context.Context, pod *corev1.Pod, method string, port int, path string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://%s:%d%s", pod.Status.PodIP, port, path), nil)
	if err != nil {
		return "", err
	}
	response, err := programs.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	said, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s", method, path, response.Status)
	}
	return string(said), err
}

// awaitAnswer waits until a GET of path returns want.
func awaitAnswer(t *testing.T, pod *corev1.Pod, port int, path, want string) {
	t.Helper()
	await.Within(t, 2*await.Patience, fmt.Sprintf("Pod %s says %q at %s", pod.Name, want, path), func(ctx context.Context) error {
		got, err := ask(ctx, pod, http.MethodGet, port, path)
		if err == nil && got != want {
			err = fmt.Errorf("it says %q", got)
		}
		return err
	})
}

// tell sends a POST.
func tell(t *testing.T, pod *corev1.Pod, port int, path string) {
	t.Helper()
	await.Eventually(t, "POST "+path, func(ctx context.Context) error {
		_, err := ask(ctx, pod, http.MethodPost, port, path)
		return err
	})
}

// end makes a program exit that ignored the SIGTERM which it got. It returns when the program
// has ended. The next program at its port has got no SIGTERM.
func end(t *testing.T, pod *corev1.Pod, port int) {
	t.Helper()
	await.Eventually(t, "the end of a deaf program", func(ctx context.Context) error {
		signals, asked := ask(ctx, pod, http.MethodGet, port, "/signals")
		if ended := asked != nil || signals == "0"; ended {
			return nil
		}
		_, err := ask(ctx, pod, http.MethodPost, port, "/exit?code=0") // the program does not answer
		return fmt.Errorf("it goes on: %w", err)
	})
}

// recorder holds every version of a Pod that the API server published.
type recorder struct {
	mu   sync.Mutex
	pods []*corev1.Pod
	seen []time.Time
}

// record watches a Pod until the test ends, beginning with the version given.
func record(t *testing.T, pod *corev1.Pod) *recorder {
	t.Helper()
	watcher, err := clients.CoreV1().Pods(pod.Namespace).Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=" + pod.Name, ResourceVersion: pod.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{pods: []*corev1.Pod{pod}, seen: []time.Time{time.Now()}}
	go func() {
		for event := range watcher.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				r.mu.Lock()
				r.pods, r.seen = append(r.pods, pod), append(r.seen, time.Now())
				r.mu.Unlock()
			}
		}
	}()
	return r
}

// until waits until the watch has delivered this version, and returns all up to it.
func (r *recorder) until(t *testing.T, pod *corev1.Pod) (pods []*corev1.Pod, seen []time.Time) {
	t.Helper()
	await.That(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		i := slices.IndexFunc(r.pods, func(p *corev1.Pod) bool { return p.ResourceVersion == pod.ResourceVersion })
		pods, seen = slices.Clone(r.pods[:i+1]), slices.Clone(r.seen[:i+1])
		return i >= 0
	}, "the watch is as far as a GET")
	return pods, seen
}

// letTheKubeletWork returns when the kubelet has run another Pod. By then it has published all
// that it had to say about the first Pod.
func letTheKubeletWork(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	startPod(t, fmt.Sprintf(`
metadata: {name: %s-after}
spec: {containers: [{name: app, image: "REGISTRY/app:1"}]}
`, pod.Name))
}

// finish makes the program of the container app exit with 0. The program does not answer.
func finish(t *testing.T, pod *corev1.Pod, port int) {
	t.Helper()
	awaitPod(t, pod, "the app has ended", func(now *corev1.Pod) error {
		if status(now, "app").State.Terminated == nil {
			_, err := ask(t.Context(), pod, http.MethodPost, port, "/exit?code=0")
			return fmt.Errorf("it goes on: %w", err)
		}
		return nil
	})
}
