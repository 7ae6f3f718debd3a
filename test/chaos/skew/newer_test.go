package skew

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// newer has every member of a container or of a volume that is new in 1.37.
const newer = `
selector: {matchLabels: {app: NAME}}
updateStrategy: {type: NotUpdate}
containers:
- name: side
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

// app is the user's container, with members that are new in 1.37 too.
func app() corev1.Container {
	return corev1.Container{
		Name: "app", Image: "example.com/app:v1",
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 90, Service: new(""), Mode: new(corev1.GRPCProbeModeTLS)}}},
	}
}

// createPod creates a Pod with the container app, and checks that injection does not change this
// container.
func createPod(t *testing.T, name, label string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": label}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{app()}},
	}
	if err := api.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	c := p.Spec.Containers[len(p.Spec.Containers)-1]
	if got := c.ReadinessProbe; c.Name != "app" || got == nil || got.GRPC == nil || got.GRPC.Mode == nil || *got.GRPC.Mode != corev1.GRPCProbeModeTLS {
		t.Errorf("the user's container is %+v", c)
	}
	return p
}

// createSet creates the SidecarSet that the spec describes and waits until its
// revision is recorded, it is Ready, and every replica injects it.
func createSet(t *testing.T, version, name, spec string) *unstructured.Unstructured {
	t.Helper()
	set := &unstructured.Unstructured{Object: map[string]any{}}
	var content map[string]any
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(spec, "NAME", name)), &content); err != nil {
		t.Fatal(err)
	}
	set.Object["spec"] = content
	set.SetAPIVersion("apps.kruise.io/" + version)
	set.SetKind("SidecarSet")
	set.SetName(name)
	if err := api.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Delete(context.WithoutCancel(t.Context()), set); err != nil {
			t.Error(err)
		}
	})
	testkit.AwaitObserved(t, api, set.GetName())
	testkit.AwaitReady(t, api, set.GetName())
	for _, replica := range replicas {
		await.Eventually(t, "injection of "+name, func(ctx context.Context) error {
			return replica.Injects(ctx, name, "default", map[string]string{"app": name})
		})
	}
	return set
}

// change patches the spec and waits until the leader has seen it.
func change(t *testing.T, set *unstructured.Unstructured, spec string) {
	t.Helper()
	if err := api.Patch(t.Context(), set, client.RawPatch(types.MergePatchType, []byte(`{"spec":`+spec+`}`))); err != nil {
		t.Fatal(err)
	}
	testkit.AwaitObserved(t, api, set.GetName())
}

// checkInjected checks the members of newer in a Pod, as this build's newer
// types read them.
func checkInjected(t *testing.T, p *corev1.Pod) {
	t.Helper()
	type mounts = []corev1.VolumeMount
	side, native := named(t, p.Spec.Containers, "side"), named(t, p.Spec.InitContainers, "native")
	if p := side.ReadinessProbe; p == nil || p.HTTPGet == nil || p.HTTPGet.Protocol == nil || *p.HTTPGet.Protocol != corev1.HTTPProtocolHTTP2 {
		t.Errorf("readiness probe %+v", p)
	}
	if p := side.LivenessProbe; p == nil || p.GRPC == nil || p.GRPC.Mode == nil || *p.GRPC.Mode != corev1.GRPCProbeModeTLS {
		t.Errorf("liveness probe %+v", p)
	}
	if p := native.StartupProbe; p == nil || p.HTTPGet == nil || p.HTTPGet.Protocol == nil || *p.HTTPGet.Protocol != corev1.HTTPProtocolHTTP1 {
		t.Errorf("startup probe %+v", p)
	}
	if diff := cmp.Diff(mounts{{Name: "config", MountPath: "/config", BindMountOptions: []string{"noexec"}}}, side.VolumeMounts); diff != "" {
		t.Errorf("mounts of the sidecar (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(mounts{{Name: "data", MountPath: "/data", BindMountOptions: []string{"nodev", "nosuid"}}}, native.VolumeMounts); diff != "" {
		t.Errorf("mounts of the native sidecar (-want +got):\n%s", diff)
	}
	for _, v := range p.Spec.Volumes {
		if c := v.ConfigMap; c != nil && c.DefaultUser != nil && *c.DefaultUser == 1000 && c.Items[0].User != nil && *c.Items[0].User == 1001 {
			return
		}
	}
	t.Errorf("volumes %+v", p.Spec.Volumes)
}

func named(t *testing.T, containers []corev1.Container, name string) corev1.Container {
	t.Helper()
	for _, c := range containers {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("there is no container %s in %+v", name, containers)
	return corev1.Container{}
}

func TestMembersNewerThanTheLibrariesReachPods(t *testing.T) {
	for _, version := range []string{"v1beta1", "v1alpha1"} {
		t.Run("written as "+version, func(t *testing.T) {
			name := "newer-" + version
			createSet(t, version, name, newer)
			checkInjected(t, createPod(t, name, name))
		})
	}
}

// The operator records a revision with members that its libraries do not know, and injects them
// later.
func TestMembersNewerThanTheLibrariesAreRecorded(t *testing.T) {
	const name = "recorded"
	set := createSet(t, "v1beta1", name, newer)
	first := testkit.AwaitObserved(t, api, set.GetName()).Status.LatestRevision
	change(t, set, `{"containers":[{"name":"side","image":"example.com/side:v2"}],"initContainers":null,"volumes":null}`)
	change(t, set, `{"injectionStrategy":{"revision":{"revisionName":"`+first+`"}}}`)
	await.Eventually(t, "injection of the recorded revision", func(ctx context.Context) error {
		for range 4 * len(replicas) { // either replica may answer
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "probe", Labels: map[string]string{"app": name}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{app()}},
			}
			if err := api.Create(ctx, p, client.DryRunAll); err != nil {
				return err
			}
			if len(p.Spec.InitContainers) == 0 {
				return fmt.Errorf("a Pod gets %+v", p.Spec.Containers)
			}
		}
		return nil
	})
	checkInjected(t, createPod(t, name, name))
}

// An upgrade of the libraries changes no hash, so no Pod becomes outdated.
func TestHashesDoNotDependOnTheLibraries(t *testing.T) {
	set := createSet(t, "v1beta1", "hashed", newer)
	spec, _ := set.Object["spec"].(map[string]any)
	withImage, withoutImage, err := revision.Hashes(spec)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{appsv1beta1.AnnotationHash: withImage, appsv1beta1.AnnotationHashWithoutImage: withoutImage}
	got := map[string]string{}
	for key := range want {
		got[key] = set.GetAnnotations()[key]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("hashes (-this build's +the older build's):\n%s", diff)
	}
}
