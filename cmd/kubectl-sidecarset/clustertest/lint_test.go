package clustertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// With --dry-run=server, lint says what the API server and the operator say, at the lines of the
// file, and nothing is stored.
func TestLintAsksTheCluster(t *testing.T) {
	t.Parallel()
	namespace := selectedNamespace(t)
	file := filepath.Join(t.TempDir(), "set.yaml")
	manifest := strings.ReplaceAll(`apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata:
  name: linted-NS
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
  selector: {matchLabels: {app: linted}}
  updateStrtegy: {}
  containers:
  - name: NS
    image: example.com/a:v1
    resources:
      limits: {cpu: 1}
      requests: {cpu: 2}
    novel: 1
    env:
    - name: a=b
`, "NS", namespace)
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	const typo = ":8:3: error: SidecarSet linted-"
	if out, code := kubectl(t, "lint", "-f", file); code != 2 || !strings.Contains(out, typo) || strings.Contains(out, "a=b") {
		t.Errorf("without a cluster: exit code %d:\n%s", code, out)
	}
	out, code := kubectl(t, "lint", "-f", file, "--dry-run=server")
	for _, part := range []string{
		typo, ":14:7: error: SidecarSet linted-" + namespace + ": spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
		":17:7: error: SidecarSet linted-" + namespace + ": spec.containers[0].env[0].name: Invalid value: \"a=b\": ",
	} {
		if code != 2 || !strings.Contains(out, part) {
			t.Errorf("exit code %d, want %q in\n%s", code, part, out)
		}
	}
	if strings.Count(out, "updateStrtegy") != 1 {
		t.Errorf("one problem is said twice:\n%s", out)
	}
	refuses(t, []string{"rollout", "history", "linted-" + namespace}, "not found")
}
