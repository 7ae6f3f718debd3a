package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The samples apply as a whole, so each of them has to be in the kustomization. That they can be
// applied together, a script of the plugin checks: samples.txtar.
func TestKustomizationListsEverySample(t *testing.T) {
	data, err := os.ReadFile("samples/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob("samples/*.yaml")
	if err != nil || len(paths) < 2 {
		t.Fatalf("samples: %v, %v", paths, err)
	}
	for _, path := range paths {
		name := filepath.Base(path)
		if name != "kustomization.yaml" && !strings.Contains(string(data), "\n- "+name+"\n") {
			t.Errorf("kustomization.yaml lacks %s", name)
		}
	}
}
