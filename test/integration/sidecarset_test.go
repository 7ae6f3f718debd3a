package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

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

// What the samples are, and what the pages about tasks tell a reader to apply.
func TestManifestsOfThePagesAreAccepted(t *testing.T) {
	var all []string
	for pattern, block := range map[string]*regexp.Regexp{
		"config/samples/*.yaml": regexp.MustCompile("(?s)^(.*)$"),
		"docs/tasks/*.md":       regexp.MustCompile("(?s)```yaml\n(.*?)```"),
	} {
		files, err := filepath.Glob(filepath.Join(deploy.Root(), pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, manifest := range block.FindAllStringSubmatch(string(text), -1) {
				if strings.Contains(manifest[1], "kind: SidecarSet") {
					all = append(all, manifest[1])
				}
			}
		}
	}
	if len(all) < 10 {
		t.Errorf("%d manifests were found", len(all))
	}
	testkit.Kubectl(t, cluster, strings.Join(all, "\n---\n"), "apply", "--dry-run=server", "-f", "-")
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

// A program that manages OpenKruise's CRDs may write its own conversion webhook into the CRD. The
// operator does not write its CA bundle there, and its replicas stay ready.
func TestAnotherConversionWebhookIsLeftAlone(t *testing.T) {
	kubectl := func(verb string, args ...string) string {
		return testkit.Kubectl(t, cluster, "", append([]string{verb, "crd", deploy.CRD}, args...)...)
	}
	point := func(clientConfig string) {
		kubectl("patch", "--type=json", "-p", `[{"op": "replace", "path": "/spec/conversion/webhook/clientConfig", "value": `+clientConfig+`}]`)
	}
	ours := kubectl("get", "-o", "jsonpath={.spec.conversion.webhook.clientConfig}")
	point(`{"service": {"namespace": "kruise-system", "name": "kruise-webhook-service", "path": "/convert"}}`)
	await.Eventually(t, "a word of it", func(context.Context) error {
		for _, replica := range replicas {
			if strings.Contains(replica.Log(), "calls kruise-webhook-service.kruise-system.svc, which is not this operator") {
				return nil
			}
		}
		return errors.New("no replica says that conversions go elsewhere")
	})
	if bundle := kubectl("get", "-o", "jsonpath={.spec.conversion.webhook.clientConfig.caBundle}"); bundle != "" {
		t.Errorf("the bundle is %s", bundle)
	}
	for _, replica := range replicas {
		await.Eventually(t, "readiness of "+replica.Name, replica.Ready)
	}

	// The next tests rely on conversions.
	point(ours)
	await.Eventually(t, "a conversion", func(ctx context.Context) error {
		set := newSidecarSet(t, "default", onlyHere("definition"))
		set.SetGroupVersionKind(v1alpha1)
		return api.Create(ctx, set, client.DryRunAll)
	})
	awaitInjected(t, createSidecarSet(t, "default", onlyHere("definition")), "default", "app=definition")
}
