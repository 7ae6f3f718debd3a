package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

const rollingTwo = `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
updateStrategy: {type: RollingUpdate, maxUnavailable: 2}
containers: [{name: side, image: "example.com/side:v1"}, {name: other, image: "example.com/other:v1"}]
`

// Another webhook rewrites images to those of a mirror. If the SidecarSet's image does not
// change, the rewritten image stays, and the container is not restarted.
func TestRewrittenImagesThatDoNotChangeStay(t *testing.T) {
	t.Parallel()
	const mirrored = "mirror.example.com/other:v1"
	f := newFleet(t, rollingTwo, 3, &testkit.Kubelet{Pull: 20 * time.Millisecond})
	for _, p := range f.pods(t) {
		body := []byte(`{"spec":{"containers":[{"name":"other","image":"` + mirrored + `"}]}}`)
		if err := api.Patch(t.Context(), &p, client.RawPatch(types.StrategicMergePatchType, body)); err != nil {
			t.Fatal(err)
		}
	}
	restarts := map[string]int32{}
	await.Within(t, rolloutPatience, "the rewritten images", func(context.Context) error {
		for _, p := range f.pods(t) {
			if testkit.IsDisturbed(&p) || len(p.Status.ContainerStatuses) == 0 {
				return fmt.Errorf("%s does not run them", p.Name)
			}
			restarts[p.Name] = statusOfContainer(t, &p, "other").RestartCount
		}
		return nil
	})
	f.update(t, map[string]any{"containers": []any{
		map[string]any{"name": "side", "image": "example.com/side:v2"}, map[string]any{"name": "other", "image": "example.com/other:v1"},
	}})
	f.awaitCounters(t, 3, 3)
	f.awaitImages(t, "side", map[string]int{"example.com/side:v2": 3})
	f.awaitImages(t, "other", map[string]int{mirrored: 3})
	for _, p := range f.pods(t) {
		if s := statusOfContainer(t, &p, "other"); s.RestartCount != restarts[p.Name] || p.Status.Phase != corev1.PodRunning {
			t.Errorf("%s: container other was started again %d times more", p.Name, s.RestartCount-restarts[p.Name])
		}
	}
}
