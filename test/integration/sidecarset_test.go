package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

var v1alpha1 = schema.GroupVersionKind{Group: appsv1beta1.GroupVersion.Group, Version: "v1alpha1", Kind: "SidecarSet"}

// readAs reads a SidecarSet in another version.
func readAs(t *testing.T, name string, gvk schema.GroupVersionKind) map[string]any {
	t.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvk)
	if err := api.Get(t.Context(), client.ObjectKey{Name: name}, object); err != nil {
		t.Fatal(err)
	}
	return object.Object
}

func apply(t *testing.T, manifest string) {
	t.Helper()
	if _, err := cluster.Kubectl(t.Context(), manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	object := parse(t, manifest, "")
	t.Cleanup(func() { deleteSidecarSet(t, object) })
}

func field(object map[string]any, path ...string) any {
	value, _, err := unstructured.NestedFieldNoCopy(object, path...)
	if err != nil {
		return err
	}
	return value
}

func TestBothVersionsAreOneObject(t *testing.T) {
	apply(t, `
apiVersion: apps.kruise.io/v1alpha1
kind: SidecarSet
metadata:
  name: written-as-v1alpha1
  labels: {apps.kruise.io/sidecarset-custom-version: v2, keep: me}
spec:
  namespace: some-namespace
  selector: {matchLabels: {app: versions}}
  containers: [{name: side, image: "example.com/side:v1", inventedField: {a: 1}}]
  volumes: [{name: data, inventedSource: {size: 9007199254740993}}]
`)
	beta := readAs(t, "written-as-v1alpha1", appsv1beta1.Kind)
	for path, want := range map[string]any{
		"spec.namespaceSelector.matchLabels": map[string]any{"kubernetes.io/metadata.name": "some-namespace"},
		"spec.namespace":                     nil,
		"spec.customVersion":                 "v2",
		"metadata.labels":                    map[string]any{"keep": "me"},
	} {
		if diff := cmp.Diff(want, field(beta, strings.Split(path, ".")...)); diff != "" {
			t.Errorf("v1beta1 %s (-want +got):\n%s", path, diff)
		}
	}
	alpha := readAs(t, "written-as-v1alpha1", v1alpha1)
	for path, want := range map[string]any{
		"spec.namespaceSelector": nil,
		"spec.namespace":         "some-namespace",
		"spec.customVersion":     nil,
		"metadata.labels":        map[string]any{"keep": "me", "apps.kruise.io/sidecarset-custom-version": "v2"},
	} {
		if diff := cmp.Diff(want, field(alpha, strings.Split(path, ".")...)); diff != "" {
			t.Errorf("v1alpha1 %s (-want +got):\n%s", path, diff)
		}
	}
	for version, object := range map[string]map[string]any{"v1beta1": beta, "v1alpha1": alpha} {
		side := field(object, "spec", "containers").([]any)[0].(map[string]any)
		if diff := cmp.Diff(map[string]any{"a": int64(1)}, side["inventedField"]); diff != "" {
			t.Errorf("%s: invented field of a container (-want +got):\n%s", version, diff)
		}
		data := field(object, "spec", "volumes").([]any)[0].(map[string]any)
		if diff := cmp.Diff(map[string]any{"size": int64(9007199254740993)}, data["inventedSource"]); diff != "" {
			t.Errorf("%s: invented source of a volume (-want +got):\n%s", version, diff)
		}
		if _, ok := data["emptyDir"]; ok {
			t.Errorf("%s: a volume with a source we do not know was given another", version)
		}
	}
	all, err := cluster.Kubectl(t.Context(), "", "get", "sidecarsets.v1alpha1.apps.kruise.io", "-o", "name")
	if err != nil || !strings.Contains(all, "written-as-v1alpha1") {
		t.Errorf("listing as v1alpha1: %q, %v", all, err)
	}
}

func TestSamplesAreAccepted(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(deploy.Root(), "config/samples/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("samples: %v, %v", files, err)
	}
	args := []string{"apply", "--dry-run=server"}
	for _, file := range files {
		if filepath.Base(file) != "kustomization.yaml" {
			args = append(args, "-f", file)
		}
	}
	if _, err := cluster.Kubectl(t.Context(), "", args...); err != nil {
		t.Error(err) // of each sample, with its file
	}
}

// What the pages about tasks tell a reader to apply.
func TestSidecarSetsOfTheTasksAreAccepted(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(deploy.Root(), "docs/tasks/*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("pages: %v, %v", pages, err)
	}
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	tried := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, manifest := range block.FindAllSubmatch(text, -1) {
			if !bytes.Contains(manifest[1], []byte("kind: SidecarSet")) {
				continue
			}
			tried++
			if _, err := cluster.Kubectl(t.Context(), string(manifest[1]), "apply", "--dry-run=server", "-f", "-"); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
	if tried < 5 {
		t.Errorf("%d SidecarSets were found on %d pages", tried, len(pages))
	}
}

// The policy in docs/security.md refuses Pods without the sidecar that it names.
func TestThePolicyAgainstMissingSidecars(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(deploy.Root(), "docs/security.md"))
	if err != nil {
		t.Fatal(err)
	}
	policy := regexp.MustCompile("(?s)```yaml\n([^`]*\nkind: ValidatingAdmissionPolicy\n.*?)```").FindSubmatch(text)
	if policy == nil {
		t.Fatal("the page shows no policy")
	}
	if _, err := cluster.Kubectl(t.Context(), string(policy[1]), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), string(policy[1]), "delete", "-f", "-"); err != nil {
			t.Error(err)
		}
	})
	namespace := testkit.Namespace(t, api, map[string]string{"audit": "enabled"})
	try := func(ctx context.Context, image string) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}, Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "audit", Image: image}}, Containers: []corev1.Container{{Name: "app", Image: "example.com/app:v1"}},
		}}
		return api.Create(ctx, pod, client.DryRunAll)
	}
	await.Eventually(t, "a refusal", func(ctx context.Context) error {
		if err := try(ctx, "example.com/other:v1"); err == nil || !strings.Contains(err.Error(), "the sidecar audit is missing") {
			return fmt.Errorf("a Pod with another image is answered with %q", fmt.Sprint(err))
		}
		return nil
	})
	if err := try(t.Context(), "busybox:1.36"); err != nil {
		t.Errorf("a Pod with the sidecar: %v", err)
	}
}
