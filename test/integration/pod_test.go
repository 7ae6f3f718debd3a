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
