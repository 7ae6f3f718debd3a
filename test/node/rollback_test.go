package node

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// waitsFor returns a check that the container waits for one of these reasons.
func waitsFor(container string, reasons ...string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		is := status(pod, container)
		for _, reason := range reasons {
			if is.State.Waiting != nil && is.State.Waiting.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("%s is %+v", container, is.State)
	}
}

// ended returns a check that the container has ended, and the status gives no reason.
func ended(container string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if is := status(pod, container); is.State.Terminated == nil {
			return fmt.Errorf("%s is %+v", container, is.State)
		}
		return nil
	}
}

// With a bad tag, sidecars do not run and the Pod is not Ready. A good tag repairs the Pod at
// once, whatever the back-off of the bad one. The status of a native sidecar that exited with 0
// does not show why it does not run.
func TestAGoodImageRepairsABadOne(t *testing.T) {
	t.Parallel()
	image(t, "repair:v1")
	image(t, "repair:v1-failing", "EXIT=143")
	image(t, "repair:v3", "VERSION=v3")
	before := startPod(t, `
metadata: {name: repair}
spec:
  initContainers:
  - {name: native, image: "REGISTRY/repair:v1", restartPolicy: Always}
  - {name: native-failing, image: "REGISTRY/repair:v1-failing", restartPolicy: Always}
  containers:
  - {name: app, image: "REGISTRY/app:1"}
  - {name: plain, image: "REGISTRY/repair:v1"}
`)
	setImages(t, before, images("repair:missing", "native", "native-failing", "plain"))
	broken := awaitPod(t, before, "all images back off", all(ended("native"), waitsFor("native-failing", "ImagePullBackOff"), waitsFor("plain", "ImagePullBackOff"), isNotReady))
	if broken.Status.Phase != corev1.PodRunning {
		t.Errorf("the Pod is %s", broken.Status.Phase)
	}
	unchanged(t, before, broken, "app")
	setImages(t, before, images("repair:v3", "native", "native-failing", "plain"))
	after := awaitPod(t, before, "all run", all(runsAnother(before, "native", "native-failing", "plain"), isReady))
	unchanged(t, before, after, "app")
}

// The kubelet notices an invalid image name only after it has killed the old container.
func TestAnInvalidImageNameTakesTheSidecarDown(t *testing.T) {
	t.Parallel()
	image(t, "invalid:v1")
	before := startPod(t, `
metadata: {name: invalid}
spec:
  containers:
  - {name: app, image: "REGISTRY/app:1"}
  - {name: plain, image: "REGISTRY/invalid:v1"}
`)
	setImages(t, before, images("invalid:bad tag", "plain"))
	awaitPod(t, before, "the name is invalid", waitsFor("plain", "InvalidImageName"))
	setImages(t, before, images("invalid:v1", "plain"))
	after := awaitPod(t, before, "it runs", all(runsAnother(before, "plain"), isReady))
	unchanged(t, before, after, "app")
}

// If a rollback is written while the kubelet is still killing a container for the bad image, the
// kubelet follows the rollback after that.
func TestARollbackDuringTheKill(t *testing.T) {
	t.Parallel()
	image(t, "killing:v1", "PORT=8080", "DEAF=1")
	before := startPod(t, `
metadata: {name: killing}
spec:
  terminationGracePeriodSeconds: 60
  initContainers: [{name: native, image: "REGISTRY/killing:v1", restartPolicy: Always}]
  containers: [{name: app, image: "REGISTRY/app:1"}]
`)
	awaitAnswer(t, before, 8080, "/signals", "0")
	setImages(t, before, images("killing:missing", "native"))
	awaitAnswer(t, before, 8080, "/signals", "1")
	back := setImages(t, before, images("killing:v1", "native"))
	end(t, before, 8080)
	after := awaitPod(t, before, "it runs", all(runsAnother(before, "native"), isReady, observed(back.Generation)))
	unchanged(t, before, after, "app")
	restartedOnce(t, after, "native") // the old image's container was killed for the bad image
}

// A rollback that is written during a pull waits for the pull's end: until then
// the kubelet does not observe its generation.
func TestARollbackDuringThePull(t *testing.T) {
	t.Parallel()
	image(t, "pulling:v1")
	image(t, "pulling-v2:v2", "VERSION=v2")
	before := startPod(t, `
metadata: {name: pulling}
spec:
  initContainers: [{name: native, image: "REGISTRY/pulling:v1", restartPolicy: Always}]
  containers: [{name: app, image: "REGISTRY/app:1"}]
`)
	closeGate(t, "pulling-v2")
	setImages(t, before, images("pulling-v2:v2", "native"))
	awaitPull(t, "pulling-v2")
	back := setImages(t, before, images("pulling:v1", "native"))
	letTheKubeletWork(t, before)
	if pulling := getPod(t, before); pulling.Status.ObservedGeneration >= back.Generation {
		t.Errorf("the generation of the rollback is observed during the pull: %+v", pulling.Status)
	}
	openGate(t, "pulling-v2")
	after := awaitPod(t, before, "the old image runs", func(pod *corev1.Pod) error {
		if status(pod, "native").ImageID != status(before, "native").ImageID {
			return errors.New("another image runs")
		}
		return errors.Join(runsAnother(before, "native")(pod), isReady(pod), observed(back.Generation)(pod))
	})
	unchanged(t, before, after, "app")
}

// A native sidecar whose startupProbe has not passed is not replaced until the
// probe has failed for good.
func TestARollbackOfANativeSidecarThatHangsInStartup(t *testing.T) {
	t.Parallel()
	image(t, "hanging:v1", "PORT=8080")
	image(t, "hanging:v2", "PORT=8080", "HANGING=1", "VERSION=v2")
	image(t, "hanging:v3", "PORT=8080", "VERSION=v3")
	before := startPod(t, `
metadata: {name: hanging}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - {name: native, image: "REGISTRY/hanging:v1", restartPolicy: Always, startupProbe: {httpGet: {port: 8080, path: /started}, periodSeconds: 1, failureThreshold: 15}}
  containers: [{name: app, image: "REGISTRY/app:1"}]
`)
	setImages(t, before, images("hanging:v2", "native"))
	hanging := awaitPod(t, before, "the second image hangs", all(runsAnother(before, "native"), isNotReady))
	if is := status(hanging, "native"); is.Started == nil || *is.Started {
		t.Errorf("a container whose startupProbe has not passed says started: %v", is.Started)
	}
	written := setImages(t, before, images("hanging:v3", "native"))
	seen := awaitPod(t, before, "the generation is observed", observed(written.Generation))
	unchanged(t, hanging, seen, "native")
	after := awaitPod(t, before, "the third image runs", all(runsAnother(hanging, "native"), isReady))
	awaitAnswer(t, after, 8080, "/version", "v3")
	unchanged(t, before, after, "app")
}
