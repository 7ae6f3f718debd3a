package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/ecosystem/helm"
	"github.com/sidecarset/operator/test/testkit"
)

// The API server accepts what every switch renders, and knows each field of it.
func TestEverySwitch(t *testing.T) {
	const namespace = "switches"
	testkit.Kubectl(t, cluster, "", "create", "namespace", namespace)
	defer clean(t, namespace)
	missing := map[string]error{ // by API group
		"cert-manager.io/": installDefinitions(t, "github.com/cert-manager/cert-manager", "deploy/crds", "certificates.cert-manager.io,issuers.cert-manager.io"),
		"monitoring.coreos.com/": installDefinitions(t, "github.com/prometheus-operator/prometheus-operator@v0.85.0", "example/prometheus-operator-crd",
			"servicemonitors.monitoring.coreos.com,prometheusrules.monitoring.coreos.com"),
	}
	for _, assignments := range helm.Switches {
		t.Run(strings.Join(assignments, ","), func(t *testing.T) {
			release, err := helm.Template(namespace, assignments...)
			if err != nil {
				t.Fatal(err)
			}
			for group, err := range missing {
				if err != nil && strings.Contains(release.Manifest, "apiVersion: "+group) {
					t.Skipf("SKIP: the kinds of %s cannot be installed: %v", group, err)
				}
			}
			for _, object := range documents(t, release.Manifest) {
				text, err := json.Marshal(object)
				if err != nil {
					t.Fatal(err)
				}
				options := &client.PatchOptions{FieldManager: "helm", FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll}}
				if err := api.Patch(t.Context(), object, client.RawPatch(types.ApplyPatchType, text), options); err != nil {
					t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
				}
			}
		})
	}
}

// installDefinitions applies the CustomResourceDefinitions that a Go module comes with; go.mod names its version, if module
// does not. It returns an error if the module cannot be downloaded.
func installDefinitions(t *testing.T, module, files, kinds string) error {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module).Output()
	if err != nil {
		return fmt.Errorf("downloading the module %s: %w", module, err)
	}
	var downloaded struct{ Dir string }
	if err := json.Unmarshal(out, &downloaded); err != nil {
		t.Fatal(err)
	}
	testkit.Kubectl(t, cluster, "", "apply", "--server-side", "-f", filepath.Join(downloaded.Dir, files))
	await.Eventually(t, "the kinds "+kinds, func(ctx context.Context) error {
		_, err := cluster.Kubectl(ctx, "", "get", "-A", kinds)
		return err
	})
	return nil
}
