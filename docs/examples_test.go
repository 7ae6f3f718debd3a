package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/manifests"
)

// With the name references of docs/examples, kustomize renames ConfigMaps and Secrets wherever a SidecarSet uses them.
func TestKustomizeFollowsNames(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{
		"name-references.yaml": read(t, "docs/examples/kustomize/name-references.yaml"),
		"kustomization.yaml": `
configurations: [name-references.yaml]
configMapGenerator: [{name: plain, literals: [level=info]}]
secretGenerator: [{name: secret, literals: [token=x]}]
resources: [sidecarset.yaml]
`,
		"sidecarset.yaml": `
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: agent}
spec:
  initContainers: &containers
  - name: agent
    envFrom: [{configMapRef: {name: plain}}, {secretRef: {name: secret}}]
    env:
    - {name: A, valueFrom: {configMapKeyRef: {name: plain, key: level}}}
    - {name: B, valueFrom: {secretKeyRef: {name: secret, key: token}}}
  containers: *containers
  volumes:
  - {name: a, configMap: {name: plain}}
  - {name: b, secret: {secretName: secret}}
  - {name: c, projected: {sources: [{configMap: {name: plain}}, {secret: {name: secret}}]}}
  imagePullSecrets: [{name: secret}]
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := manifests.Build(dir)
	if err != nil {
		t.Fatal(err)
	}
	// Six and seven places of the SidecarSet, and the object's own name.
	if plain, secret := strings.Count(text, "ame: plain-"), strings.Count(text, "ame: secret-"); plain != 7 || secret != 8 {
		t.Errorf("the new names are in %d and %d places, want 7 and 8:\n%s", plain, secret, text)
	}
}
