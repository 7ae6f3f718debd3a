package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

const mirror = "mirror.example.com/"

// toMirror are a policy that rewrites the images of all Pods of a namespace, and its binding.
var toMirror = []string{`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: mirror-NS}
spec:
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
    resourceRules: [{operations: [CREATE, UPDATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]
  reinvocationPolicy: IfNeeded
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >
        Object{spec: Object.spec{containers: object.spec.containers.filter(c, !c.image.startsWith("mirror.example.com/")).map(c,
          Object.spec.containers{name: c.name, image: "mirror.example.com/" + c.image})}}
`, `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: mirror-NS}
spec: {policyName: mirror-NS}
`}

const mirrored = `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
updateStrategy: {type: RollingUpdate, maxUnavailable: 2}
containers:
- {name: side, image: "example.com/side:v1"}
- {name: other, image: "example.com/other:v1"}
- {name: hot, image: "example.com/hot:v1", upgradeStrategy: {upgradeType: HotUpgrade, hotUpgradeEmptyImage: "example.com/empty:v1"}}
`

// A policy rewrites the images of all Pods, also when the operator updates them. Each rollout
// ends, and it writes each Pod as often as without the policy.
func TestARolloutEndsWhereAPolicyRewritesImages(t *testing.T) {
	t.Parallel()
	needServer(t, 36) // which has MutatingAdmissionPolicies
	const pods = 3
	f := newFleet(t, mirrored, 0, &testkit.Kubelet{Pull: 20 * time.Millisecond})
	for _, manifest := range toMirror {
		object := parse(t, manifest, f.namespace)
		create(t, object)
		t.Cleanup(func() { _ = api.Delete(context.WithoutCancel(t.Context()), object) })
	}
	await.Eventually(t, "images of the mirror", func(ctx context.Context) error {
		p := pod(f.namespace, "dry", "app=web")
		if err := api.Create(ctx, p, client.DryRunAll); err != nil {
			return err
		}
		if c := p.Spec.Containers; len(c) != 5 || !strings.HasPrefix(c[0].Image, mirror) {
			return fmt.Errorf("its containers are %v", c)
		}
		return nil
	})
	for i := range pods {
		create(t, pod(f.namespace, fmt.Sprintf("p-%02d", i), "app=web"))
	}
	f.awaitCounters(t, pods, pods)
	for round, version := range []string{"v2", "v3", "v2"} {
		manifest := strings.NewReplacer("side:v1", "side:"+version, "hot:v1", "hot:"+version).Replace(mirrored)
		f.update(t, map[string]any{"containers": parse(t, manifest, "").Object["containers"]})
		f.awaitCounters(t, pods, pods)
		f.awaitImages(t, "side", map[string]int{mirror + "example.com/side:" + version: pods})
		f.awaitImages(t, "other", map[string]int{mirror + "example.com/other:v1": pods})
		for _, p := range f.pods(t) {
			// One write gives side and the idle container of hot their images; one more ends the hot upgrade.
			if want := int64(1 + 2*(round+1)); p.Generation != want {
				t.Errorf("%s: %s has generation %d, want %d", version, p.Name, p.Generation, want)
			}
			working := []string{"hot-2", "hot-1", "hot-2"}[round]
			if got := p.Annotations[appsv1beta1.AnnotationWorkingHotUpgradeContainer]; got != fmt.Sprintf(`{"hot":%q}`, working) {
				t.Errorf("%s: %s works with %s, want %s", version, p.Name, got, working)
			}
		}
	}
}
