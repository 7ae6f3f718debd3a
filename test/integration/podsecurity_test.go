package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// The API server enforces the restricted Pod Security Standard in the operator's Namespace. It
// admits the Pods of both layouts.
func TestOurPodsAreAdmittedUnderTheRestrictedStandard(t *testing.T) {
	for profile, count := range map[string]int{"default": 1, "overlays/hardened": 2} {
		t.Run(profile, func(t *testing.T) {
			deployments := deploymentsOf(t, filepath.Join(deploy.Root(), "config", profile))
			if len(deployments) != count {
				t.Errorf("%d Deployments, want %d", len(deployments), count)
			}
			for _, d := range deployments {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, GenerateName: d.Name + "-", Labels: d.Spec.Template.Labels}, Spec: d.Spec.Template.Spec}
				if err := api.Create(t.Context(), p.DeepCopy(), client.DryRunAll); err != nil {
					t.Errorf("Pod of %s: %v", d.Name, err)
				}
				p.Spec.Containers[0].SecurityContext = nil
				if err := api.Create(t.Context(), p, client.DryRunAll); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "restricted") {
					t.Errorf("a Pod of %s without a security context: %v, want a refusal", d.Name, err)
				}
			}
		})
	}
}

// deploymentsOf builds a directory of config/.
func deploymentsOf(t *testing.T, directory string) []appsv1.Deployment {
	t.Helper()
	manifests, err := cluster.Kubectl(t.Context(), "", "kustomize", directory)
	if err != nil {
		t.Fatal(err)
	}
	var deployments []appsv1.Deployment
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		var d appsv1.Deployment
		if !strings.Contains("\n"+document, "\nkind: Deployment\n") {
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(document), &d); err != nil {
			t.Fatal(err)
		}
		deployments = append(deployments, d)
	}
	return deployments
}

// A Namespace refuses Pods because of a sidecar, and their authors are not told why. The author of
// the SidecarSet is: when it is applied, even right after the Namespace, and as long as it lasts.
func TestTheAuthorIsToldWhatPodSecurityRefuses(t *testing.T) {
	author := newUser(t, cluster, api, "author", "cluster-admin")
	namespace := testkit.Namespace(t, api, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	told := fmt.Sprintf("Pod Security (restricted) refuses Pods with these sidecars in namespace %s: container \"side\" must set securityContext.allowPrivilegeEscalation=false; ", namespace)
	set := newSidecarSet(t, namespace, requesterSpec+inNamespace)
	if err := author.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteSidecarSet(t, set) })
	if warnings := author.told(); !strings.Contains(warnings, told) {
		t.Errorf("warned of %q, want %q", warnings, told)
	}
	says := func(want bool) {
		t.Helper()
		testkit.Await(t, api, set.GetName(), fmt.Sprintf("the refusal (%v) in condition Ready", want), func(set *appsv1beta1.SidecarSet) error {
			if err := testkit.Ready(set); err != nil {
				return err
			}
			if message := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady).Message; strings.Contains(message, told) != want {
				return fmt.Errorf("it says %q", message)
			}
			return nil
		})
	}
	says(true)

	p := pod(namespace, "web", "app=web")
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: new(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	if err := api.Create(t.Context(), p.DeepCopy(), client.DryRunAll); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `container "side"`) {
		t.Errorf("the Pod is answered with %v, want a refusal because of the sidecar", err)
	}

	relabel := func(level string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":%q}}}`, level)
		if err := api.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	relabel("baseline")
	says(false)
	relabel("restricted")
	says(true)

	const fields = `[{"op":"add","path":"/spec/containers/0/securityContext","value":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]},"runAsNonRoot":true,"seccompProfile":{"type":"RuntimeDefault"}}}]`
	author.told()
	if err := author.Patch(t.Context(), set, client.RawPatch(types.JSONPatchType, []byte(fields))); err != nil {
		t.Fatal(err)
	}
	if warnings := author.told(); strings.Contains(warnings, "Pod Security") {
		t.Errorf("warned of %q, although the fields are set", warnings)
	}
	says(false)
	await.Eventually(t, "a Pod with the sidecar", func(ctx context.Context) error {
		injected := p.DeepCopy()
		if err := api.Create(ctx, injected, client.DryRunAll); err != nil || len(injected.Spec.Containers) != 2 {
			return fmt.Errorf("it has %v: %w", testkit.ContainerNames(injected.Spec.Containers), err)
		}
		return nil
	})
}
