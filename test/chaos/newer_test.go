package chaos

import (
	"context"
	"debug/buildinfo"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// olderOperator is the environment variable with the path of an operator that was built with the
// libraries of one minor version earlier, by make chaos.
const olderOperator = "OPERATOR_OLDER"

// newGates let API servers keep the members that are new in 1.37.
const newGates = "kube-apiserver=--feature-gates=H2CContainerProbe=true,GRPCContainerProbeTLS=true,VolumeBindMountOptions=true,AtomicWriteVolumeUserFields=true"

// newer has every member of a container or of a volume that is new in 1.37.
const newer = `
selector: {matchLabels: {app: NAME}}
updateStrategy: {type: NotUpdate}
containers:
- name: NAME
  podInjectPolicy: AfterAppContainer
  image: example.com/side:v1
  readinessProbe: {httpGet: {port: 80, protocol: HTTP2}}
  livenessProbe: {grpc: {port: 81, mode: TLS}}
  volumeMounts: [{name: config, mountPath: /config, bindMountOptions: [noexec]}]
initContainers:
- name: native
  image: example.com/native:v1
  restartPolicy: Always
  startupProbe: {httpGet: {port: 82, protocol: HTTP1}}
  volumeMounts: [{name: data, mountPath: /data, bindMountOptions: [nodev, nosuid]}]
volumes:
- name: config
  configMap: {name: c, defaultUser: 1000, items: [{key: k, path: p, user: 1001}]}
- name: data
  emptyDir: {}
`

// An operator whose libraries are older than the API server injects, hashes and records members that its
// libraries do not know. So an upgrade of the libraries makes no Pod outdated.
func TestMembersNewerThanTheLibraries(t *testing.T) {
	older := os.Getenv(olderOperator)
	if older == "" || os.Getenv("K8S_VERSION") != "" {
		t.Skip("SKIP: there is no operator with older libraries, or an API server without new members; make chaos builds one and sets " + olderOperator)
	}
	checkOlder(t, older)
	amendOperator(t, func(c *stand.Command) { c.Path = older })
	f := startReplicas(t, 2)
	namespace := testkit.Namespace(t, api, nil)
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		name := "newer-" + version
		set := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps.kruise.io/" + version, "kind": "SidecarSet"}}
		set.SetName(name)
		var spec map[string]any
		if err := yaml.Unmarshal([]byte(strings.ReplaceAll(newer, "NAME", name)), &spec); err != nil {
			t.Fatal(err)
		}
		set.Object["spec"] = spec
		deleteAfter(t, name)
		if err := api.Create(t.Context(), set); err != nil {
			t.Fatal(err)
		}
		testkit.AwaitReady(t, api, name)
		awaitInjection(t, f, namespace, name, 1)
		checkNewer(t, name, createNewer(t, namespace, name))
		if version == "v1beta1" {
			wantHashes(t, set)
		}
	}

	name := "newer-v1beta1"
	first := testkit.AwaitObserved(t, api, name).Status.LatestRevision
	for _, spec := range []string{
		`{"containers":[{"name":"` + name + `","image":"example.com/side:v2"}],"initContainers":null,"volumes":null}`,
		`{"injectionStrategy":{"revision":{"revisionName":"` + first + `"}}}`,
	} {
		if _, err := sets[0].Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":`+spec+`}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		testkit.AwaitObserved(t, api, name)
	}
	await.Eventually(t, "injection of the recorded revision", func(ctx context.Context) error {
		return injects(ctx, namespace, name, "example.com/side:v1", 10)
	})
	checkNewer(t, name, createNewer(t, namespace, name))
}

// checkOlder fails the test if the program does not have the libraries of the minor version before.
func checkOlder(t *testing.T, program string) {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range info.Deps {
		if module.Path == "k8s.io/api" && module.Replace != nil && strings.HasPrefix(module.Replace.Version, "v0.36.") {
			return
		}
	}
	t.Fatalf("%s is not built against k8s.io/api v0.36", program)
}

// wantHashes compares the hashes of the older operator with those of this build.
func wantHashes(t *testing.T, set *unstructured.Unstructured) {
	t.Helper()
	withImage, withoutImage, err := revision.Hashes(set.Object["spec"].(map[string]any))
	if err != nil {
		t.Fatal(err)
	}
	got := set.GetAnnotations()
	if got[appsv1beta1.AnnotationHash] != withImage || got[appsv1beta1.AnnotationHashWithoutImage] != withoutImage {
		t.Errorf("the older build has the hashes %v, this build has %s and %s", got, withImage, withoutImage)
	}
}

// createNewer creates a Pod whose container has a member that is new in 1.37 too. Injection does not
// change this container.
func createNewer(t *testing.T, namespace, label string) *corev1.Pod {
	t.Helper()
	p := testkit.NewPod(testkit.AppLabels(label))
	app := &p.Spec.Containers[0]
	app.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 90, Service: new(""), Mode: new(corev1.GRPCProbeModeTLS)}}}
	p, err := clients[0].CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if probe := containerOf(t, p, "app").ReadinessProbe; probe == nil || probe.GRPC == nil || probe.GRPC.Mode == nil || *probe.GRPC.Mode != corev1.GRPCProbeModeTLS {
		t.Errorf("the user's container has the probe %+v", probe)
	}
	return p
}

// checkNewer checks the members of newer in a Pod, as this build's newer types read them.
func checkNewer(t *testing.T, name string, p *corev1.Pod) {
	t.Helper()
	side, native := containerOf(t, p, name), containerOf(t, p, "native")
	if p := side.ReadinessProbe; p == nil || p.HTTPGet == nil || p.HTTPGet.Protocol == nil || *p.HTTPGet.Protocol != corev1.HTTPProtocolHTTP2 {
		t.Errorf("readiness probe %+v", p)
	}
	if p := side.LivenessProbe; p == nil || p.GRPC == nil || p.GRPC.Mode == nil || *p.GRPC.Mode != corev1.GRPCProbeModeTLS {
		t.Errorf("liveness probe %+v", p)
	}
	if p := native.StartupProbe; p == nil || p.HTTPGet == nil || p.HTTPGet.Protocol == nil || *p.HTTPGet.Protocol != corev1.HTTPProtocolHTTP1 {
		t.Errorf("startup probe %+v", p)
	}
	mounts := map[string][]string{}
	for _, m := range slices.Concat(side.VolumeMounts, native.VolumeMounts) {
		mounts[m.Name+" "+m.MountPath] = m.BindMountOptions
	}
	if diff := cmp.Diff(map[string][]string{"config /config": {"noexec"}, "data /data": {"nodev", "nosuid"}}, mounts); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	if !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		c := v.ConfigMap
		return c != nil && c.DefaultUser != nil && *c.DefaultUser == 1000 && c.Items[0].User != nil && *c.Items[0].User == 1001
	}) {
		t.Errorf("volumes %+v", p.Spec.Volumes)
	}
}

func containerOf(t *testing.T, p *corev1.Pod, name string) corev1.Container {
	t.Helper()
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("Pod %s has no container %s", p.Name, name)
	return corev1.Container{}
}
