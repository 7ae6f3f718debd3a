package node

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// While the kubelet kills sidecars without a readinessProbe and pulls their images, the status
// stays as it was: Ready, and the old containers run.
func TestReadyStaysTrueThroughASlowPull(t *testing.T) {
	t.Parallel()
	image(t, "slow:v1", "PORT=8080")
	image(t, "slow:v2", "PORT=8080", "VERSION=v2")
	before := startPod(t, `
metadata: {name: slow}
spec:
  initContainers: [{name: native, image: "REGISTRY/slow:v1", restartPolicy: Always}]
  containers:
  - {name: app, image: "REGISTRY/app:1"}
  - {name: plain, image: "REGISTRY/slow:v1", env: [{name: PORT, value: "8081"}]}
`)
	versions := record(t, before)
	closeGate(t, "slow")
	written := setImages(t, before, images("slow:v2", "native", "plain"))
	awaitPull(t, "slow")
	for _, port := range []int{8080, 8081} {
		if _, err := ask(t.Context(), before, http.MethodGet, port, "/version"); err == nil {
			t.Errorf("a sidecar still answers on port %d: it was not killed before the pull", port)
		}
	}
	letTheKubeletWork(t, before)
	pulling := getPod(t, before)
	for _, name := range []string{"native", "plain"} {
		unchanged(t, before, pulling, name) // only in the status: the container has ended
	}
	if err := errors.Join(isReady(pulling), observed(written.Generation)(pulling)); err != nil {
		t.Errorf("during the pull: %v", err)
	}
	openGate(t, "slow")
	after := awaitPod(t, before, "both run anew", all(runsAnother(before, "native", "plain"), isReady))
	for _, pod := range versions.until(t, after) {
		if ready(pod).Status != corev1.ConditionTrue {
			t.Errorf("a status said that the Pod is not Ready:\n%+v", pod.Status)
		}
	}
	if !ready(before).LastTransitionTime.Time.Equal(ready(after).LastTransitionTime.Time) {
		t.Error("lastTransitionTime of Ready has changed")
	}
}

// A readinessProbe notices that the sidecar is gone, and Ready turns False before
// the new container starts.
func TestAReadinessProbeNoticesAPull(t *testing.T) {
	t.Parallel()
	image(t, "probed:v1", "PORT=8080")
	image(t, "probed:v2", "PORT=8080", "VERSION=v2")
	before := startPod(t, `
metadata: {name: probed}
spec:
  initContainers:
  - {name: native, image: "REGISTRY/probed:v1", restartPolicy: Always, readinessProbe: {httpGet: {port: 8080, path: /ready}, periodSeconds: 1, failureThreshold: 2}}
  containers: [{name: app, image: "REGISTRY/app:1"}]
`)
	closeGate(t, "probed")
	setImages(t, before, images("probed:v2", "native"))
	awaitPull(t, "probed")
	pulling := awaitPod(t, before, "not Ready during the pull", isNotReady)
	if was, is := status(before, "native"), status(pulling, "native"); is.ContainerID != was.ContainerID || is.State.Running == nil || is.Ready {
		t.Errorf("during the pull the sidecar is %+v; want the old one, running and not ready", is)
	}
	openGate(t, "probed")
	after := awaitPod(t, before, "Ready", all(runsAnother(before, "native"), isReady))
	unchanged(t, before, after, "app")
}

// In the first status of the new generation, the old container still runs and the Pod is Ready:
// the kubelet publishes this status before it kills the container.
func TestTheGenerationIsObservedBeforeTheKill(t *testing.T) {
	t.Parallel()
	image(t, "observed:v1", "PORT=8080", "DEAF=1")
	image(t, "observed:v2", "VERSION=v2")
	before := startPod(t, `
metadata: {name: observed}
spec:
  terminationGracePeriodSeconds: 60
  initContainers: [{name: native, image: "REGISTRY/observed:v1", restartPolicy: Always}]
  containers: [{name: app, image: "REGISTRY/app:1"}]
`)
	awaitAnswer(t, before, 8080, "/signals", "0")
	written := setImages(t, before, images("observed:v2", "native"))
	awaitAnswer(t, before, 8080, "/signals", "1") // the container got SIGTERM, and ignores it
	killing := awaitPod(t, before, "the generation is observed", observed(written.Generation))
	if _, err := ask(t.Context(), before, http.MethodGet, 8080, "/signals"); err != nil {
		t.Fatalf("the old container has ended already: %v", err)
	}
	unchanged(t, before, killing, "native")
	if err := isReady(killing); err != nil {
		t.Error(err)
	}
	end(t, before, 8080)
	awaitPod(t, before, "the new one runs", runsAnother(before, "native"))
}

// Each container that ignores SIGTERM takes the whole grace period, one after the
// other.
func TestGracePeriodsAddUp(t *testing.T) {
	t.Parallel()
	image(t, "grace:v1", "DEAF=1", "PORT=8080")
	image(t, "grace:v2", "VERSION=v2")
	const seconds = 3
	before := startPod(t, fmt.Sprintf(`
metadata: {name: grace}
spec:
  terminationGracePeriodSeconds: %d
  initContainers: [{name: native, image: "REGISTRY/grace:v1", restartPolicy: Always}]
  containers:
  - {name: app, image: "REGISTRY/app:1"}
  - {name: plain, image: "REGISTRY/grace:v1", env: [{name: PORT, value: "8081"}]}
`, seconds))
	awaitAnswer(t, before, 8080, "/signals", "0")
	awaitAnswer(t, before, 8081, "/signals", "0")
	setImages(t, before, images("grace:v2", "native", "plain"))
	after := awaitPod(t, before, "both run anew", runsAnother(before, "native", "plain"))
	native, plain := status(after, "native").LastTerminationState.Terminated, status(after, "plain").LastTerminationState.Terminated
	if native == nil || plain == nil || native.ExitCode != 137 || plain.ExitCode != 137 {
		t.Fatalf("they ended as %+v and %+v; want both killed", native, plain)
	}
	between := native.FinishedAt.Sub(plain.FinishedAt.Time).Abs()
	if between.Seconds() < seconds-1 { // the status has times in whole seconds
		t.Errorf("they ended %s apart; want one grace period of %d s", between, seconds)
	}
}
