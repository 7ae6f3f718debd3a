package node

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

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
