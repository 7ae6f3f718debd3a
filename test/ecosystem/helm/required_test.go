package helm

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/manifests"
)

// The chart's policy is that of config/required, for the namespaces that the chart's flag excludes.
func TestRequired(t *testing.T) {
	text, err := manifests.Build(filepath.Join(deploy.Root(), "config/required"))
	if err != nil {
		t.Fatal(err)
	}
	all := objects(t, rendered(t, "sidecarset-system", "required.enabled=true"))
	for name, want := range objects(t, text) {
		if diff := cmp.Diff(want, all[name]); diff != "" {
			t.Errorf("%s (-config +chart):\n%s", name, diff)
		}
	}
	const policy = "ValidatingAdmissionPolicy  sidecarset-required"
	other := objects(t, rendered(t, "elsewhere", "required.enabled=true", "excludedNamespaces={a,b}"))[policy]
	constraints := other["spec"].(map[string]any)["matchConstraints"].(map[string]any)
	selector := constraints["namespaceSelector"].(map[string]any)["matchExpressions"].([]any)
	if diff := cmp.Diff([]any{"a", "b", "elsewhere"}, selector[0].(map[string]any)["values"]); diff != "" {
		t.Errorf("namespaces (-want +got):\n%s", diff)
	}
}
