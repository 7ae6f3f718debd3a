package cluster

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/helm"
	"github.com/sidecarset/operator/test/testkit"
)

// The API server accepts what every switch renders, and knows each field of it.
func TestEverySwitch(t *testing.T) {
	const namespace = "switches"
	testkit.Kubectl(t, cluster, "", "create", "namespace", namespace)
	defer clean(t, namespace)
	installDefinitions(t, "test/certmanager", "github.com/cert-manager/cert-manager", "deploy/crds", "certificates.cert-manager.io,issuers.cert-manager.io")
	installDefinitions(t, "", "github.com/prometheus-operator/prometheus-operator@v0.85.0", "example/prometheus-operator-crd", "servicemonitors.monitoring.coreos.com,prometheusrules.monitoring.coreos.com")
	for _, assignments := range helm.Switches {
		t.Run(strings.Join(assignments, ","), func(t *testing.T) {
			release, err := helm.Template(namespace, assignments...)
			if err != nil {
				t.Fatal(err)
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

// installDefinitions applies the CustomResourceDefinitions that a Go module comes with. directory has the go.mod that names its version.
func installDefinitions(t *testing.T, directory, module, files, kinds string) {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module)
	download.Dir = filepath.Join(deploy.Root(), directory)
	out, err := download.Output()
	if err != nil {
		t.Skipf("SKIP: the module %s cannot be downloaded: %v", module, err)
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
}
