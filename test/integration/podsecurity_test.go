package integration

import (
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/manifests"
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
	text, err := manifests.Build(directory)
	if err != nil {
		t.Fatal(err)
	}
	var deployments []appsv1.Deployment
	for document := range strings.SplitSeq(text, "\n---\n") {
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
