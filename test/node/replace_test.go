package node

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A native sidecar is started before the app, and the app waits for it.
func TestANativeSidecarStartsBeforeTheApp(t *testing.T) {
	t.Parallel()
	sidecar := image(t, "before:v1", "PORT=8080", "HANGING=1")
	pod := createPod(t, fmt.Sprintf(`
metadata: {name: before}
spec:
  initContainers:
  - {name: proxy, image: %q, restartPolicy: Always, startupProbe: {httpGet: {port: 8080, path: /started}, periodSeconds: 1, failureThreshold: 120}}
  containers: [{name: app, image: "REGISTRY/app:1"}]
`, sidecar))
	pod = awaitPod(t, pod, "the sidecar runs", func(pod *corev1.Pod) error {
		if status(pod, "proxy").State.Running == nil || pod.Status.PodIP == "" {
			return errors.New("it does not")
		}
		return nil
	})
	if app := status(pod, "app"); app.State.Waiting == nil || app.State.Waiting.Reason != "PodInitializing" {
		t.Errorf("the app is %+v while its sidecar has not started", app.State)
	}
	tell(t, pod, 8080, "/start")
	pod = awaitPod(t, pod, "Ready", isReady)
	if app, proxy := status(pod, "app").State.Running, status(pod, "proxy").State.Running; app.StartedAt.Before(&proxy.StartedAt) {
		t.Errorf("the app started at %s, before its sidecar at %s", app.StartedAt, proxy.StartedAt)
	}
}

// An image change replaces the changed containers and leaves all others running.
func TestAnImageChangeReplacesOnlyTheSidecars(t *testing.T) {
	t.Parallel()
	image(t, "only:v1", "VERSION=v1")
	image(t, "only:v2", "VERSION=v2")
	before := startPod(t, `
metadata: {name: only}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: native, image: "REGISTRY/only:v1", restartPolicy: Always}
  - {name: native-unchanged, image: "REGISTRY/only:v1", restartPolicy: Always}
  containers:
  - {name: app, image: "REGISTRY/app:1"}
  - {name: plain, image: "REGISTRY/only:v1"}
`)
	setImages(t, before, images("only:v2", "native", "plain"))
	after := awaitPod(t, before, "both run anew", all(runsAnother(before, "native", "plain"), isReady))
	unchanged(t, before, after, "app")
	unchanged(t, before, after, "native-unchanged")
	restartedOnce(t, after, "native", "plain")
	for _, name := range []string{"native", "plain"} {
		if was, is := status(before, name), status(after, name); is.ImageID == was.ImageID {
			t.Errorf("%s has imageID %s, as before", name, is.ImageID)
		}
	}
	if after.Status.PodIP != before.Status.PodIP || after.UID != before.UID {
		t.Error("the Pod was replaced")
	}
}
