package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

const mirror = "mirror.example.com/"

// installPolicy creates a policy that changes the Pods of a namespace, with its binding.
func installPolicy(t *testing.T, api client.Client, namespace, mutation string, operations ...admissionregistrationv1.OperationType) {
	t.Helper()
	name := metav1.ObjectMeta{Name: "change-" + namespace}
	constraints := matchUpdates(namespace)
	constraints.ResourceRules[0].Operations = operations
	policy := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: name, Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
		MatchConstraints:   constraints,
		ReinvocationPolicy: admissionregistrationv1.IfNeededReinvocationPolicy,
		Mutations: []admissionregistrationv1.Mutation{{
			PatchType:          admissionregistrationv1.PatchTypeApplyConfiguration,
			ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: mutation},
		}},
	}}
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: name, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name.Name}}
	for _, object := range []client.Object{policy, binding} {
		if err := api.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := api.Delete(context.WithoutCancel(t.Context()), object); err != nil {
				t.Errorf("deleting %s: %v", object.GetName(), err)
			}
		})
	}
}

// toMirror rewrites the images of all containers.
const toMirror = `Object{spec: Object.spec{containers: object.spec.containers.filter(c, !c.image.startsWith("` + mirror + `")).map(c,
	Object.spec.containers{name: c.name, image: "` + mirror + `" + c.image})}}`

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
	if cluster.Minor() < 36 {
		t.Skip("SKIP: API servers have MutatingAdmissionPolicies since Kubernetes 1.36")
	}
	sidecars := func(version string) []any {
		return []any{
			map[string]any{"name": "side", "image": "example.com/side:" + version},
			map[string]any{"name": "other", "image": "example.com/other:v1"},
			map[string]any{"name": "hot", "image": "example.com/hot:" + version, "upgradeStrategy": map[string]any{"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "example.com/empty:v1"}},
		}
	}
	const pods = 3
	f := newFleet(t, mirrored, 0, &testkit.Kubelet{Pull: 20 * time.Millisecond})
	installPolicy(t, api, f.namespace, toMirror, admissionregistrationv1.Create, admissionregistrationv1.Update)
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
		f.update(t, map[string]any{"containers": sidecars(version)})
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

// lateSecrets stands for a webhook that is called after the operator: once the sidecar is
// there, it gives the app's container a mount, a variable and resources.
const lateSecrets = `object.spec.containers.exists(c, c.name == "agent") ?
	Object{metadata: Object.metadata{annotations: {"late": "done"}}, spec: Object.spec{
		volumes: [Object.spec.volumes{name: "secrets", emptyDir: Object.spec.volumes.emptyDir{medium: "Memory"}}],
		containers: object.spec.containers.filter(c, c.name == "app").map(c, Object.spec.containers{name: c.name,
			volumeMounts: [Object.spec.containers.volumeMounts{name: "secrets", mountPath: "/vault/secrets"}],
			env: [Object.spec.containers.env{name: "LATE", value: "1"}],
			resources: Object.spec.containers.resources{limits: {"cpu": "2"}}})}}
	: Object{metadata: Object.metadata{annotations: {"first": "done"}}}`

// With IfNeeded, API servers call again after another webhook has changed the Pod. The second
// call leaves what that webhook has set, and takes over mounts and variables that it has added. The
// resources of a sidecar stay as the first call computed them.
func TestTheSecondCallRespectsOtherWebhooks(t *testing.T) {
	t.Parallel()
	i := installApart(t, deploy.Default)
	if i.cluster.Minor() < 36 {
		t.Skip("SKIP: API servers have MutatingAdmissionPolicies since Kubernetes 1.36")
	}
	i.start(t, 60, "--pod-webhook-reinvocation=IfNeeded")
	testkit.AwaitCalled(t, i.api)
	const token = "/var/run/secrets/kubernetes.io/serviceaccount"
	type sidecar struct {
		Image, CPU  string
		Mounts, Env []string
	}
	for name, tc := range map[string]struct {
		policy, policies string // of the other webhook, and of the sidecar
		want             sidecar
	}{
		"images of a mirror": {toMirror, "", sidecar{mirror + "example.com/agent:v1", "0", []string{token}, []string{"IS_INJECTED"}}},
		"late secrets": {lateSecrets, `
  shareVolumePolicy: {type: enabled}
  transferEnv: [{sourceContainerName: app, envNames: [LATE]}]
  resourcesPolicy: {targetContainersMode: sum, targetContainersNameRegex: app, resourcesExpr: {limits: {cpu: cpu/2}}}
`, sidecar{"example.com/agent:v1", "0", []string{"/logs", token, "/vault/secrets"}, []string{"IS_INJECTED", "LATE"}}},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := testkit.Namespace(t, i.api, nil)
			testkit.AwaitServiceAccount(t, i.api, namespace)
			set := newSidecarSet(t, namespace, onlyHere("web"))
			set.Object["spec"].(map[string]any)["containers"] = parse(t, "all:\n- name: agent\n  image: example.com/agent:v1"+tc.policies, namespace).Object["all"]
			if err := i.api.Create(t.Context(), set); err != nil {
				t.Fatal(err)
			}
			testkit.AwaitReady(t, i.api, set.GetName())
			installPolicy(t, i.api, namespace, tc.policy, admissionregistrationv1.Create)
			p := pod(namespace, "web", "app=web")
			p.Spec.Volumes = []corev1.Volume{{Name: "logs"}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "logs", MountPath: "/logs"}}
			await.Eventually(t, "the policy", func(ctx context.Context) error {
				dry := p.DeepCopy()
				if err := i.api.Create(ctx, dry, client.DryRunAll); err != nil {
					return err
				}
				if dry.Annotations["first"] == "" && !strings.HasPrefix(dry.Spec.Containers[0].Image, mirror) {
					return fmt.Errorf("annotations %v, image %s", dry.Annotations, dry.Spec.Containers[0].Image)
				}
				return nil
			})
			if err := i.api.Create(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			c := p.Spec.Containers[slices.Index(testkit.ContainerNames(p.Spec.Containers), "agent")]
			got := sidecar{Image: c.Image, CPU: c.Resources.Limits.Cpu().String()}
			for _, m := range c.VolumeMounts {
				got.Mounts = append(got.Mounts, m.MountPath)
			}
			for _, e := range c.Env {
				got.Env = append(got.Env, e.Name)
			}
			slices.Sort(got.Mounts)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("the sidecar (-want +got):\n%s", diff)
			}
			testkit.AwaitCounters(t, i.api, set.GetName(), testkit.Counters{Matched: 1, Updated: 1})
		})
	}
}

// matchUpdates are the constraints of a policy for updates of the Pods of a namespace.
func matchUpdates(namespace string) *admissionregistrationv1.MatchResources {
	return &admissionregistrationv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
		ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}},
	}
}
