package integration

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/testkit"
)

const fullSet = `
selector: {matchLabels: {app: web}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
updateStrategy: {type: NotUpdate}
initContainers:
- {name: z-init, image: "example.com/init:v1"}
- {name: native, image: "example.com/native:v1", restartPolicy: Always, podInjectPolicy: BeforeAppContainer}
containers:
- {name: after, image: "example.com/after:v1", podInjectPolicy: AfterAppContainer}
- name: before
  image: example.com/before:v1
  volumeMounts: [{name: logs, mountPath: /logs}]
volumes:
- {name: logs, emptyDir: {}}
- {name: unused, emptyDir: {}}
imagePullSecrets: [{name: pull}]
`

func TestInjection(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, fullSet)
	awaitInjected(t, set, namespace, "app=web")

	p := pod(namespace, "selected", "app=web")
	p.Spec.InitContainers = []corev1.Container{{Name: "m-init", Image: "example.com/m:v1"}}
	create(t, p)

	if diff := cmp.Diff([]string{"before", "app", "after"}, testkit.ContainerNames(p.Spec.Containers)); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"native", "m-init", "z-init"}, testkit.ContainerNames(p.Spec.InitContainers)); diff != "" {
		t.Errorf("init containers (-want +got):\n%s", diff)
	}
	var volumes []string
	for _, v := range p.Spec.Volumes {
		volumes = append(volumes, v.Name)
	}
	if diff := cmp.Diff([]string{"logs"}, volumes); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]corev1.LocalObjectReference{{Name: "pull"}}, p.Spec.ImagePullSecrets); diff != "" {
		t.Errorf("pull secrets (-want +got):\n%s", diff)
	}
	if got := p.Annotations[appsv1beta1.AnnotationInjectedList]; got != set.GetName() {
		t.Errorf("injected list is %q, want %q", got, set.GetName())
	}
	if hash := set.GetAnnotations()[appsv1beta1.AnnotationHash]; hash == "" || !strings.Contains(p.Annotations[appsv1beta1.AnnotationHash], `"hash":"`+hash+`"`) {
		t.Errorf("hash annotation %s does not hold the SidecarSet's hash %q", p.Annotations[appsv1beta1.AnnotationHash], hash)
	}
	for _, c := range p.Spec.Containers {
		injected := len(c.Env) > 0 && c.Env[len(c.Env)-1] == corev1.EnvVar{Name: appsv1beta1.EnvInjected, Value: "true"}
		if injected != (c.Name != "app") {
			t.Errorf("container %s: env %v", c.Name, c.Env)
		}
	}
}

func TestExemptAndUnselectedPodsAreNotInjected(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, fullSet)
	awaitInjected(t, set, namespace, "app=web")
	elsewhere := testkit.Namespace(t, api, nil)

	mirror := pod(namespace, "mirror", "app=web")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	mirror.Spec.NodeName = "node"
	tests := map[string]*corev1.Pod{
		"a Pod without the label":     pod(namespace, "plain", "app=other"),
		"a Pod of another namespace":  pod(elsewhere, "elsewhere", "app=web"),
		"a Pod in kube-system":        pod(metav1.NamespaceSystem, "system", "app=web"),
		"a Pod without a label set":   pod(namespace, "bare"),
		"a mirror Pod of the kubelet": mirror,
	}
	for name, p := range tests {
		t.Run(name, func(t *testing.T) {
			create(t, p)
			if diff := cmp.Diff([]string{"app"}, testkit.ContainerNames(p.Spec.Containers)); diff != "" {
				t.Errorf("containers (-want +got):\n%s", diff)
			}
			if list, ok := p.Annotations[appsv1beta1.AnnotationInjectedList]; ok {
				t.Errorf("injected list %q", list)
			}
		})
	}
}

// A user applies the output of "kubectl get pod -o yaml" for a Pod that has ended. The new
// Pod will run, so it gets its sidecars.
func TestManifestOfAPodThatHasEndedIsInjected(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	set := createSidecarSet(t, namespace, fullSet)
	awaitInjected(t, set, namespace, "app=web")
	p := pod(namespace, "again", "app=web")
	p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}
	p.DeletionTimestamp = new(metav1.Now())
	create(t, p)
	if p.Status.Phase != corev1.PodPending || p.DeletionTimestamp != nil {
		t.Errorf("the API server kept phase %s, deletionTimestamp %v", p.Status.Phase, p.DeletionTimestamp)
	}
	if names := testkit.ContainerNames(p.Spec.Containers); len(names) < 2 {
		t.Errorf("containers %q", names)
	}
}

// Three entries select the Pod, so the API server makes three calls. Each call inserts the
// enforced sidecars again, but the stored Pod has them once.
func TestEnforcedSidecarsReplaceWhatAPodClaims(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	const in = "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}\n"
	front := createSidecarSet(t, namespace, in+`
selector: {matchLabels: {tier: front}}
containers: [{name: c, image: "example.com/c:v1"}]
`)
	enforced := newSidecarSet(t, namespace, in+`
selector: {matchLabels: {audit: "yes"}}
initContainers: [{name: proxy, image: "example.com/proxy:v1", restartPolicy: Always, podInjectPolicy: BeforeAppContainer}]
containers: [{name: audit, image: "example.com/audit:v1", ports: [{containerPort: 80}], volumeMounts: [{name: rules, mountPath: /rules}]}]
volumes: [{name: rules, configMap: {name: rules}}]
updateStrategy: {type: NotUpdate}
`)
	enforced.SetAnnotations(map[string]string{appsv1beta1.AnnotationEnforce: "true"})
	create(t, enforced)
	t.Cleanup(func() { deleteSidecarSet(t, enforced) })
	testkit.AwaitReady(t, api, enforced.GetName())
	web := createSidecarSet(t, namespace, in+`
selector: {matchLabels: {app: web}}
containers: [{name: a, image: "example.com/a:v1"}]
`)
	awaitInjected(t, front, namespace, "tier=front")
	awaitInjected(t, enforced, namespace, "audit=yes")
	awaitInjected(t, web, namespace, "app=web")

	first := pod(namespace, "first", "app=web", "audit=yes", "tier=front")
	create(t, first)
	forged := pod(namespace, "forged", "app=web", "audit=yes", "tier=front")
	forged.Annotations = first.Annotations
	forged.Spec.InitContainers, forged.Spec.Containers, forged.Spec.Volumes = first.Spec.InitContainers, first.Spec.Containers, first.Spec.Volumes
	forged = forged.DeepCopy()
	for i := range forged.Spec.Containers {
		if forged.Spec.Containers[i].Name == "audit" {
			forged.Spec.Containers[i].Command = []string{"sleep", "inf"}
			forged.Spec.Containers[i].Ports = nil
		}
	}
	forged.Spec.InitContainers[0].Command = []string{"sleep", "inf"}
	for i := range forged.Spec.Volumes {
		if forged.Spec.Volumes[i].Name == "rules" {
			forged.Spec.Volumes[i].VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		}
	}
	create(t, forged)
	if names := testkit.ContainerNames(first.Spec.Containers); len(names) != 4 {
		t.Errorf("containers %q", names)
	}
	if diff := cmp.Diff(first.Spec, forged.Spec); diff != "" {
		t.Errorf("spec (-plain +forged):\n%s", diff)
	}
}

func TestNamespaceSelectorReadsLabels(t *testing.T) {
	// T35: OpenKruise injects nothing in a namespace with the label control-plane, whatever its
	// value. This operator excludes only the namespaces that its configuration names.
	namespace := testkit.Namespace(t, api, map[string]string{"team": "a", "control-plane": "any-value"})
	other := testkit.Namespace(t, api, map[string]string{"team": "b"})
	set := createSidecarSet(t, namespace, `
selector: {matchLabels: {app: teams}}
namespaceSelector: {matchExpressions: [{key: team, operator: In, values: [a]}]}
containers: [{name: side, image: "example.com/side:v1"}]
`)
	awaitInjected(t, set, namespace, "app=teams")
	for ns, want := range map[string][]string{namespace: {"side", "app"}, other: {"app"}} {
		p := pod(ns, "p", "app=teams")
		create(t, p)
		if diff := cmp.Diff(want, testkit.ContainerNames(p.Spec.Containers)); diff != "" {
			t.Errorf("containers in %s (-want +got):\n%s", ns, diff)
		}
	}

	// If a Namespace is newer than a replica's snapshot, the replica reads it live.
	young := testkit.Namespace(t, api, map[string]string{"team": "a"})
	p := pod(young, "p", "app=teams")
	create(t, p)
	if diff := cmp.Diff([]string{"side", "app"}, testkit.ContainerNames(p.Spec.Containers)); diff != "" {
		t.Errorf("containers in a namespace made a moment ago (-want +got):\n%s", diff)
	}
}
