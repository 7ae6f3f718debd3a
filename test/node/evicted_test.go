package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

const withVolume = setHead + `
  volumes: [{name: scratch, emptyDir: {sizeLimit: 1Mi}}]
  containers:
  - {name: plain, image: "REGISTRY/NAME:v1", podInjectPolicy: AfterAppContainer, volumeMounts: [{name: scratch, mountPath: /scratch}]}
`

// A new image fills the emptyDir of its sidecar. The kubelet evicts the Pod that gets it, and the
// Deployment replaces that Pod. No other Pod gets the image: the evicted one uses the budget. If its programs
// exit with 0 in time, its phase is Succeeded, without a reason.
func TestAnImageThatFillsItsVolumeCostsOnePod(t *testing.T) {
	t.Parallel()
	image(t, "evicted:v1")
	image(t, "evicted-full:v2", "FILL=/scratch")
	before := startApp(t, "evicted", withVolume, deployment, 3)
	awaitUpdated(t, "evicted", 3)
	minReady := func(seconds string) {
		testkit.Kubectl(t, cluster, "", "annotate", "sidecarset", "evicted", "--overwrite", "sidecarset.io/min-ready-seconds="+seconds)
	}
	// has returns those of the first Pods that pass the check.
	has := func(ctx context.Context, check func(*corev1.Pod) bool) (names []string, err error) {
		for i := range before {
			pod, err := clients.CoreV1().Pods("evicted").Get(ctx, before[i].Name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			if check(pod) {
				names = append(names, pod.Name)
			}
		}
		return names, nil
	}

	// The first Pod is not available before the kubelet has measured its volume, however long that takes.
	closeGate(t, "evicted-full")
	change(t, "evicted", map[string]string{plainImage: registry + "/evicted-full:v2"})
	awaitPull(t, "evicted-full")
	minReady("300")
	openGate(t, "evicted-full")
	await.Within(t, 2*await.Patience, "an evicted Pod", func(ctx context.Context) error {
		evicted, err := has(ctx, func(pod *corev1.Pod) bool {
			return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		})
		if err == nil && len(evicted) != 1 {
			err = fmt.Errorf("%v are evicted", evicted)
		}
		return err
	})
	// From now on, nothing but the evicted Pod holds the others.
	minReady("0")
	await.Within(t, 2*await.Patience, "the status says what the rollout waits for", func(ctx context.Context) error {
		got, err := cluster.Kubectl(ctx, "", "get", "sidecarset", "evicted", "-o", `jsonpath={.status.disappearedPods} {.status.conditions[?(@.type=="Progressing")].message}`)
		if err == nil && (!strings.HasPrefix(got, "1 ") || !strings.Contains(got, "Budget")) {
			err = errors.New(got)
		}
		return err
	})
	letTheKubeletWork(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "evicted"}})
	wrote, err := has(t.Context(), func(pod *corev1.Pod) bool { return testkit.WantedImage(pod, "plain") != registry+"/evicted:v1" })
	if err != nil || len(wrote) != 1 {
		t.Errorf("%v got the image, want one: %v", wrote, err)
	}
}
