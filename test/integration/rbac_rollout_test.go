package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// roll makes the operator update and resize the native sidecar of a running Pod.
func (s *scenario) roll(t *testing.T) {
	t.Helper()
	kubelet := &testkit.Kubelet{Client: api, Namespace: testkit.Namespace(t, api, nil), Pull: 20 * time.Millisecond}
	s.sidecarSet(t, "native", `
selector: {matchLabels: {app: native}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: `+kubelet.Namespace+`}}
initContainers: [{name: side, image: "example.com/side:v1", restartPolicy: Always, resources: {requests: {cpu: 10m}}}]
`, map[string]string{appsv1beta1.AnnotationMinReadySeconds: "0"})
	testkit.AwaitReady(t, api, "native")
	kubelet.Start(t)
	p := pod(kubelet.Namespace, "native", "app=native")
	if err := api.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	set := &unstructured.Unstructured{}
	set.SetGroupVersionKind(appsv1beta1.Kind)
	set.SetName("native")
	for path, value := range map[string]string{"image": `"example.com/side:v2"`, "resources": `{"requests": {"cpu": "20m"}}`} {
		testkit.AwaitCounters(t, api, "native", testkit.Counters{Matched: 1, Updated: 1, Ready: 1, UpdatedReady: 1})
		patch := fmt.Sprintf(`[{"op": "replace", "path": "/spec/initContainers/0/%s", "value": %s}]`, path, value)
		if err := api.Patch(t.Context(), set, client.RawPatch(types.JSONPatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	await.Within(t, rolloutPatience, "an update and a resize", func(ctx context.Context) error {
		if err := api.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		if c := p.Spec.InitContainers[0]; c.Image != "example.com/side:v2" || c.Resources.Requests.Cpu().String() != "20m" {
			return fmt.Errorf("the sidecar is %+v", c)
		}
		return wantUpgradable(p, corev1.ConditionTrue, "AllSidecarsetUpgradable", map[string]bool{"native": true})
	})
}
