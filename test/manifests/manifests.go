// Package manifests builds what is installed: the profiles of config/, and the overlays of tests.
// Only tests import it.
package manifests

import (
	"fmt"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Build returns what kubectl kustomize prints for a directory.
func Build(dir string) (string, error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy // Namespaces first
	objects, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return "", fmt.Errorf("building the kustomization %s: %w", dir, err)
	}
	text, err := objects.AsYaml()
	return string(text), err
}
