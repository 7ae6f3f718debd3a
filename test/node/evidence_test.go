package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sidecarset/operator/internal/podstate"
)

// update changes the image of the container native as the executor does, and returns the record
// of the update.
func update(t *testing.T, pod *corev1.Pod, to string) podstate.Entry {
	t.Helper()
	pod = getPod(t, pod)
	entry := podstate.NewEntry(podstate.Write{
		Pod: pod, Now: time.Now(),
		Changes: []podstate.Change{{Container: "native", Kind: podstate.Native, From: pod.Spec.InitContainers[0].Image, To: registry + "/" + to}},
	})
	setImages(t, pod, images(to, "native"))
	return entry
}

// isBack: the update is carried out, and the Pod is Ready.
func isBack(entry podstate.Entry) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if w := entry.Observe(pod); !w.IsCarriedOut(time.Now().Unix()) || !podstate.IsAvailable(pod) {
			return fmt.Errorf("it is not back: %+v, %+v", w, pod.Status)
		}
		return nil
	}
}

// isBroken: the update is carried out, and the Pod is not Ready.
func isBroken(entry podstate.Entry) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if w := entry.Observe(pod); podstate.IsAvailable(pod) || !w.IsCarriedOut(time.Now().Unix()) {
			return fmt.Errorf("it is not broken by the update: %+v, %+v", w, pod.Status)
		}
		return nil
	}
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

// Whatever a kubelet publishes during an update, the update does not count as carried out before
// the new container has started.
func TestTheEndOfAnUpdateIsSeen(t *testing.T) {
	t.Parallel()
	for kind, sidecar := range sidecars {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			name := "end-" + kind
			before := evidence(t, name, sidecar)
			image(t, name+":v2", "PORT=8080", "VERSION=v2")
			versions := record(t, before)
			entry := update(t, before, name+":v2")
			back := awaitPod(t, before, "back", isBack(entry))
			awaitAnswer(t, back, 8080, "/version", "v2")
			for _, pod := range versions.since(t, entry, back) {
				if entry.Observe(pod).Carried != 0 && runsAnother(before, "native")(pod) != nil {
					t.Errorf("taken for over while the old container ran:\n%+v", pod.Status)
				}
			}
			tell(t, back, 8090, "/unready")
			broken := awaitPod(t, before, "broken by the app", isBroken(entry))
			unchanged(t, before, broken, "app")
		})
	}
}

// If the new container never becomes ready, the Pod is never back, and its sidecars are not up.
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
			entry := update(t, before, name+":v2")
			runs := awaitPod(t, before, "the new container runs", all(runsAnother(before, "native"), isNotReady))
			letTheKubeletWork(t, before)
			for _, pod := range versions.since(t, entry, getPod(t, before)) {
				if w := entry.Observe(pod); w.Up || w.Carried != 0 && podstate.IsAvailable(pod) {
					t.Errorf("%+v: taken for back though no new container was ever ready:\n%+v", w, pod.Status)
				}
			}
			tell(t, runs, 8080, "/ready")
			awaitPod(t, before, "back", isBack(entry))
		})
	}
}

// If the new container crashes, its sidecars do not count as up.
func TestAnImageThatCrashesIsNotBack(t *testing.T) {
	t.Parallel()
	before := evidence(t, "crashes", "")
	image(t, "crashes:v2", "CRASHING=1")
	image(t, "crashes:v3", "PORT=8080", "VERSION=v3")
	versions := record(t, before)
	entry := update(t, before, "crashes:v2")
	crashing := awaitPod(t, before, "it crashes again and again", waitsFor("native", "CrashLoopBackOff"))
	for _, pod := range versions.since(t, entry, crashing) {
		if entry.Observe(pod).Up && status(pod, "native").State.Running == nil {
			t.Errorf("its sidecars are taken for up:\n%+v", pod.Status)
		}
	}
	entry = update(t, before, "crashes:v3")
	awaitPod(t, before, "back", isBack(entry))
}
