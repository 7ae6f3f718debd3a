package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/inplace"
	"github.com/sidecarset/operator/internal/podstate"
)

// hot is one of the two containers that injection makes from a sidecar with hot upgrade.
const hot = `
  - name: NAME
    image: "REGISTRY/IMAGE"
    env:
    - {name: PORT, value: "PORTNUMBER"}
    - {name: VERSION, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['version.sidecarset.kruise.io/NAME']"}}}
    - {name: ALT, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['versionalt.sidecarset.kruise.io/NAME']"}}}
`

// step writes a step of a hot upgrade: image and annotations in one patch.
func step(t *testing.T, pod *corev1.Pod, step inplace.HotStep) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": step.Annotations},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": step.Container, "image": step.Image}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clients.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, "application/strategic-merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// Each step of a hot upgrade restarts one container. This container reads the annotations of
// its own patch. The other one still runs with the annotations that it has read before.
func TestAHotUpgradeSwapsAndResets(t *testing.T) {
	t.Parallel()
	image(t, "hot:empty")
	image(t, "hot:v1")
	image(t, "hot:v2", "RELEASE=v2")
	before := startPod(t, `
metadata:
  name: hot
  annotations:
    version.sidecarset.kruise.io/mesh-1: "1"
    versionalt.sidecarset.kruise.io/mesh-1: "0"
    version.sidecarset.kruise.io/mesh-2: "0"
    versionalt.sidecarset.kruise.io/mesh-2: "1"
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - {name: app, image: "REGISTRY/app:1"}`+
		hotContainer("mesh-1", "hot:v1", "8080")+hotContainer("mesh-2", "hot:empty", "8081"))
	awaitAnswer(t, before, 8080, "/version", "1")
	awaitAnswer(t, before, 8081, "/version", "0")

	sidecar := inplace.HotSidecar{Name: "mesh", Image: registry + "/hot:v2", EmptyImage: registry + "/hot:empty"}
	runs := func(pod *corev1.Pod) func(string) bool {
		return func(container string) bool { return podstate.IsReady(pod, container) }
	}
	up, ok := sidecar.Upgrade(before, "mesh-1", "777", runs(before))
	if !ok || up.Container != "mesh-2" || up.Working != "mesh-2" {
		t.Fatalf("the step is %+v", up)
	}
	step(t, before, up)
	both := awaitPod(t, before, "both run", all(runsAnother(before, "mesh-2"), isReady))
	awaitAnswer(t, both, 8081, "/version", "777")
	awaitAnswer(t, both, 8080, "/version", "1")
	unchanged(t, before, both, "mesh-1")
	unchanged(t, before, both, "app")

	reset, ok := sidecar.Reset(both, "mesh-2", runs(both))
	if !ok || reset.Container != "mesh-1" {
		t.Fatalf("the step is %+v", reset)
	}
	step(t, before, reset)
	after := awaitPod(t, before, "the old one is idle", all(runsAnother(both, "mesh-1"), isReady))
	awaitAnswer(t, after, 8080, "/version", "0")
	awaitAnswer(t, after, 8081, "/version", "777")
	unchanged(t, both, after, "mesh-2")
	unchanged(t, before, after, "app")
	if sidecar.Upgrading(after, "mesh-2") {
		t.Error("the upgrade waits for a reset that was done")
	}
}

func hotContainer(name, image, port string) string {
	return strings.NewReplacer("NAME", name, "IMAGE", image, "PORTNUMBER", port).Replace(hot)
}

const hotSidecarSet = setHead + `
  containers:
  - name: mesh
    image: "REGISTRY/NAME:v1"
    podInjectPolicy: AfterAppContainer
    upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: "REGISTRY/NAME:empty"}
`

// The operator gives the idle container the new image. When that runs, the operator gives the
// old one the empty image. The app is not restarted.
func TestTheOperatorUpgradesHot(t *testing.T) {
	t.Parallel()
	image(t, "hotset:empty")
	image(t, "hotset:v1")
	image(t, "hotset:v2", "RELEASE=v2")
	before := startApp(t, "hotset", hotSidecarSet, deployment, 3)
	awaitUpdated(t, "hotset", 3)
	change(t, "hotset", map[string]string{plainImage: registry + "/hotset:v2"})
	after := awaitPods(t, "hotset", "reset", 3, func(pod *corev1.Pod) error {
		for _, c := range pod.Spec.Containers {
			if want := map[string]string{"mesh-1": "hotset:empty", "mesh-2": "hotset:v2"}[c.Name]; want != "" && c.Image != registry+"/"+want {
				return fmt.Errorf("%s has the image %s, want %s", c.Name, c.Image, want)
			}
		}
		return errors.Join(isReady(pod), observed(pod.Generation)(pod))
	})
	awaitUpdated(t, "hotset", 3)
	for i := range before {
		unchanged(t, &before[i], same(t, after, &before[i]), "app")
		done := awaitPod(t, &before[i], "both containers were replaced", runsAnother(&before[i], "mesh-1", "mesh-2"))
		restartedOnce(t, done, "mesh-1", "mesh-2")
	}
}
