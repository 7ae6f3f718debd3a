package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/test/await"
)

// update changes the image of the container native as the executor does, and returns the record
// of the update.
func update(t *testing.T, pod *corev1.Pod, to string) inplace.Mark {
	t.Helper()
	pod = getPod(t, pod)
	mark := inplace.NewMark(inplace.Write{
		Pod: pod, Now: time.Now(),
		Changes: []inplace.Change{{Container: "native", Kind: inplace.Native, From: pod.Spec.InitContainers[0].Image, To: registry + "/" + to}},
	})
	setImages(t, pod, images(to, "native"))
	return mark
}

// state is what the status says about the update when there is nothing more to wait for.
func state(pod *corev1.Pod, mark inplace.Mark) inplace.Progress {
	return inplace.Observe(pod, mark).Settled(time.Now())
}

func is(want inplace.State, mark inplace.Mark) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if got := state(pod, mark); got.State() != want {
			return fmt.Errorf("the state is %d, want %d: %+v", got.State(), want, pod.Status)
		}
		return nil
	}
}

// afterStart waits until the container has run for so long that, if Ready turns False, the
// update is not the reason.
func afterStart(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	started := status(pod, "native").State.Running.StartedAt.Time
	await.That(t, func() bool { return time.Since(started) > 7*time.Second }, "the container has run for 7 s")
}

const evidencePod = `
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 20
  initContainers:
  - name: native
    image: "REGISTRY/NAME:v1"
    restartPolicy: Always
    EXTRA
  containers:
  - {name: app, image: "REGISTRY/evidence-app:v1", readinessProbe: {httpGet: {port: 8090, path: /ready}, periodSeconds: 1, failureThreshold: 1}}
`

// sidecars are ways in which the status of a sidecar comes late or early.
var sidecars = map[string]string{
	"bare":   ``,
	"probe":  `readinessProbe: {httpGet: {port: 8080, path: /ready}, periodSeconds: 1, failureThreshold: 1}`,
	"rarely": `readinessProbe: {httpGet: {port: 8080, path: /ready}, periodSeconds: 10}`,
	"hook":   `lifecycle: {postStart: {sleep: {seconds: 8}}}`,
	"both": `lifecycle: {postStart: {sleep: {seconds: 8}}}
    readinessProbe: {httpGet: {port: 8080, path: /ready}, periodSeconds: 20}`,
}

// evidence starts a Pod with a sidecar of this kind.
func evidence(t *testing.T, name, sidecar string) *corev1.Pod {
	t.Helper()
	image(t, "evidence-app:v1", "PORT=8090")
	image(t, name+":v1", "PORT=8080")
	return startPod(t, strings.NewReplacer("NAME", name, "EXTRA", sidecar).Replace(evidencePod))
}

// Whatever a kubelet publishes during an update, inplace does not report the end of the update
// before the new container runs and is ready. If the Pod breaks later, inplace still knows
// that it was back.
func TestTheEndOfAnUpdateIsSeen(t *testing.T) {
	t.Parallel()
	for kind, sidecar := range sidecars {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name := "end-" + kind
			before := evidence(t, name, sidecar)
			image(t, name+":v2", "PORT=8080", "VERSION=v2")
			versions := record(t, before)
			mark := update(t, before, name+":v2")
			back := awaitPod(t, before, "back", is(inplace.Back, mark))
			awaitAnswer(t, back, 8080, "/version", "v2")
			for _, pod := range versions.since(t, mark, back) {
				if state(pod, mark).Over() && runsAnother(before, "native")(pod) != nil {
					t.Errorf("taken for over while the old container ran:\n%+v", pod.Status)
				}
			}
			afterStart(t, back)
			tell(t, back, 8090, "/unready")
			broken := awaitPod(t, before, "broken by the app", is(inplace.Broken, mark))
			if state(broken, mark).InFlight() {
				t.Error("a Pod that was back takes a place of the budget")
			}
			unchanged(t, before, broken, "app")
		})
	}
}

// If the new container never becomes ready, the Pod stays in flight, and inplace never reports
// that it was back.
func TestAnImageThatNeverGetsReadyIsNotBack(t *testing.T) {
	t.Parallel()
	for kind, sidecar := range sidecars {
		if !strings.Contains(sidecar, "readinessProbe") {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name := "unready-" + kind
			before := evidence(t, name, sidecar)
			image(t, name+":v2", "PORT=8080", "UNREADY=1", "VERSION=v2")
			versions := record(t, before)
			mark := update(t, before, name+":v2")
			runs := awaitPod(t, before, "the new container runs", all(runsAnother(before, "native"), isNotReady))
			afterStart(t, runs)
			letTheKubeletWork(t, before)
			for _, pod := range versions.since(t, mark, getPod(t, before)) {
				if got := state(pod, mark); got.Over() {
					t.Errorf("state %d: taken for over though no new container was ever ready:\n%+v", got.State(), pod.Status)
				}
			}
			tell(t, runs, 8080, "/ready")
			awaitPod(t, before, "back", is(inplace.Back, mark))
		})
	}
}

// If the new container crashes, inplace does not report the end of the update.
func TestAnImageThatCrashesIsNotBack(t *testing.T) {
	t.Parallel()
	before := evidence(t, "crashes", "")
	image(t, "crashes:v2", "CRASHING=1")
	image(t, "crashes:v3", "PORT=8080", "VERSION=v3")
	versions := record(t, before)
	mark := update(t, before, "crashes:v2")
	crashing := awaitPod(t, before, "it crashes again and again", waitsFor("native", "CrashLoopBackOff"))
	for _, pod := range versions.since(t, mark, crashing) {
		if state(pod, mark).Over() && status(pod, "native").State.Running == nil {
			t.Errorf("taken for over:\n%+v", pod.Status)
		}
	}
	mark = update(t, before, "crashes:v3")
	awaitPod(t, before, "back", is(inplace.Back, mark))
}
