package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// setHead is the beginning of a manifest: a Namespace, and a SidecarSet of the same name. The
// containers follow.
const setHead = `
apiVersion: v1
kind: Namespace
metadata: {name: NAME, labels: {for: NAME}}
---
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: NAME, annotations: {sidecarset.io/timeout-seconds: "30", sidecarset.io/min-ready-seconds: "0"}}
spec:
  selector: {matchLabels: {app: NAME}}
  namespaceSelector: {matchLabels: {for: NAME}}
  updateStrategy: {type: RollingUpdate, maxUnavailable: 1}
`

// app is a Namespace, and a SidecarSet with two sidecars.
const app = setHead + `
  initContainers:
  - {name: native, image: "REGISTRY/NAME:v1", restartPolicy: Always}
  containers:
  - {name: plain, image: "REGISTRY/NAME:v1", podInjectPolicy: AfterAppContainer}
`

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: NAME}
spec:
  replicas: 3
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      terminationGracePeriodSeconds: 2
      containers: [{name: app, image: "REGISTRY/app:1"}]
`

func apply(t *testing.T, name, manifests string) {
	t.Helper()
	testkit.Kubectl(t, cluster, strings.NewReplacer("NAME", name, "REGISTRY", registry).Replace(manifests), "apply", "--server-side", "-f", "-")
}

// startApp creates the Namespace and the SidecarSet. When the SidecarSet is Ready, it creates
// the workload, and returns the Pods when they are Ready.
func startApp(t *testing.T, name, sidecarSet, workload string, pods int) []corev1.Pod {
	t.Helper()
	apply(t, name, sidecarSet)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if t.Failed() {
			said, _ := cluster.Kubectl(ctx, "", "-n", name, "get", "sidecarset/"+name, "-o", "yaml")
			pods, _ := cluster.Kubectl(ctx, "", "-n", name, "describe", "pods")
			logs, _ := cluster.Kubectl(ctx, "", "-n", deploy.Namespace, "logs", "--tail=30", "-l", "app.kubernetes.io/name=sidecarset-operator")
			t.Logf("%s\n%s\n%s", said, pods, logs)
		}
		_, _ = cluster.Kubectl(ctx, "", "delete", "--wait=false", "sidecarset/"+name, "namespace/"+name)
	})
	testkit.Kubectl(t, cluster, "", "wait", "--for=condition=Ready", "--timeout="+(2*await.Patience).String(), "sidecarset/"+name)
	apply(t, name, workload)
	return awaitPods(t, name, "Ready", pods, isReady)
}

// awaitPods waits until there are count Pods, and all of them pass the check.
func awaitPods(t *testing.T, namespace, what string, count int, check func(*corev1.Pod) error) []corev1.Pod {
	t.Helper()
	var all []corev1.Pod
	await.Within(t, 2*await.Patience, "Pods of "+namespace+": "+what, func(ctx context.Context) error {
		list, err := clients.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
		if len(all) != count {
			return fmt.Errorf("there are %d, want %d", len(all), count)
		}
		for i := range all {
			err = errors.Join(err, check(&all[i]))
		}
		return err
	})
	return all
}

// change replaces members of a SidecarSet's spec, by their path.
func change(t *testing.T, name string, members map[string]string) {
	t.Helper()
	var operations []string
	for path, value := range members {
		operations = append(operations, fmt.Sprintf(`{"op":"replace","path":"/spec/%s","value":%q}`, path, value))
	}
	testkit.Kubectl(t, cluster, "", "patch", "sidecarset", name, "--type=json", "-p", "["+strings.Join(operations, ",")+"]")
}

// The images and the CPU of a SidecarSet's first native and first plain sidecar.
const (
	nativeImage = "initContainers/0/image"
	plainImage  = "containers/0/image"
	nativeCPU   = "initContainers/0/resources/requests/cpu"
)

// setSidecars gives both sidecars of a SidecarSet another image.
func setSidecars(t *testing.T, name, image string) {
	t.Helper()
	change(t, name, map[string]string{nativeImage: registry + "/" + image, plainImage: registry + "/" + image})
}

// same returns the Pod with the UID of before.
func same(t *testing.T, pods []corev1.Pod, before *corev1.Pod) *corev1.Pod {
	t.Helper()
	i := slices.IndexFunc(pods, func(pod corev1.Pod) bool { return pod.UID == before.UID })
	if i < 0 {
		t.Fatalf("Pod %s is gone", before.Name)
	}
	return &pods[i]
}

// awaitUpdated waits until the status says that count Pods are updated and ready.
func awaitUpdated(t *testing.T, name string, count int) {
	t.Helper()
	await.Within(t, 2*await.Patience, "the status of SidecarSet "+name, func(ctx context.Context) error {
		got, err := cluster.Kubectl(ctx, "", "get", "sidecarset", name, "-o",
			"go-template={{eq .metadata.generation .status.observedGeneration}} {{.status.matchedPods}} {{.status.updatedPods}} {{.status.updatedReadyPods}}")
		if want := fmt.Sprintf("true %[1]d %[1]d %[1]d", count); err == nil && got != want {
			err = fmt.Errorf("observed, matched, updated, updated and ready: %s, want %s", got, want)
		}
		return err
	})
}

// The operator runs from its own image, under the image's user.
func TestTheOperatorRunsFromItsImage(t *testing.T) {
	t.Parallel()
	for _, pod := range awaitPods(t, deploy.Namespace, "Ready", 2, isReady) {
		if s := status(&pod, "operator"); s.RestartCount != 0 || !strings.HasPrefix(s.ImageID, registry+"/sidecarset-operator@sha256:") {
			t.Errorf("the operator's container is %+v", s)
		}
		if nonRoot := pod.Spec.SecurityContext.RunAsNonRoot; nonRoot == nil || !*nonRoot {
			t.Error("the Pod does not demand a user that is not root; with runAsNonRoot, the kubelet starts no image of root's")
		}
	}
}

// A SidecarSet's new images reach running Pods one by one. The apps are not restarted.
func TestARolloutReplacesSidecarsOneByOne(t *testing.T) {
	t.Parallel()
	image(t, "rollout:v1")
	image(t, "rollout:v2", "VERSION=v2")
	before := startApp(t, "rollout", app, deployment, 3)
	awaitUpdated(t, "rollout", 3)
	flight := watchFlight(t, "rollout", before)
	setSidecars(t, "rollout", "rollout:v2")
	awaitUpdated(t, "rollout", 3)
	after := awaitPods(t, "rollout", "Ready", 3, isReady)
	for i := range before {
		now := same(t, after, &before[i])
		unchanged(t, &before[i], now, "app")
		if err := runsAnother(&before[i], "native", "plain")(now); err != nil {
			t.Error(err)
		}
		restartedOnce(t, now, "native", "plain")
	}
	if most := flight(); most != 1 {
		t.Errorf("%d Pods were updated at the same time, want 1 at most", most)
	}
}

// watchFlight counts the Pods whose sidecars have a new image and are not replaced yet. The
// function that it returns says how many there were at most so far.
func watchFlight(t *testing.T, namespace string, before []corev1.Pod) func() int {
	t.Helper()
	was := map[types.UID]*corev1.Pod{}
	for i := range before {
		was[before[i].UID] = &before[i]
	}
	list, err := clients.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := clients.CoreV1().Pods(namespace).Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	most := 0
	go func() {
		flying := map[types.UID]bool{}
		for event := range watcher.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok || was[pod.UID] == nil {
				continue
			}
			asked := pod.Generation != was[pod.UID].Generation
			flying[pod.UID] = asked && all(runsAnother(was[pod.UID], "native", "plain"), isReady)(pod) != nil
			count := 0
			for _, flies := range flying {
				if flies {
					count++
				}
			}
			mu.Lock()
			most = max(most, count)
			mu.Unlock()
		}
	}()
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return most
	}
}

const job = `
apiVersion: batch/v1
kind: Job
metadata: {name: NAME, namespace: NAME}
spec:
  backoffLimit: 0
  template:
    metadata: {labels: {app: NAME}}
    spec:
      restartPolicy: OnFailure
      containers: [{name: app, image: "REGISTRY/NAME-app:v1"}]
`

const nativeOnly = setHead + `
  initContainers:
  - {name: native, image: "REGISTRY/NAME:v1", restartPolicy: Always}
`

// A rollout does not update a Pod whose Job counts restarts. The Job completes although the
// injected sidecar still runs.
func TestARolloutSparesAJob(t *testing.T) {
	t.Parallel()
	image(t, "spared:v1")
	image(t, "spared:v2", "VERSION=v2")
	image(t, "spared-app:v1", "PORT=8090")
	before := startApp(t, "spared", nativeOnly, job, 1)
	change(t, "spared", map[string]string{nativeImage: registry + "/spared:v2"})
	awaitBlocked(t, "spared", "RunToCompletion", 1, "")
	pods := awaitPods(t, "spared", "Ready", 1, isReady)
	unchanged(t, &before[0], &pods[0], "native")
	finish(t, &pods[0], 8090)
	testkit.Kubectl(t, cluster, "", "-n", "spared", "wait", "--for=condition=Complete", "--timeout="+(2*await.Patience).String(), "job/spared")
}
