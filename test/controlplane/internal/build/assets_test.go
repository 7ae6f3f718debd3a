package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAssetsSayTheirVersion(t *testing.T) {
	for says, want := range map[string]string{"Kubernetes v1.34.1": "v1.34.1", "etcd Version: 3.6": ""} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "kube-apiserver"), []byte("#!/bin/sh\necho '"+says+"'\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		got, err := AssetsVersion(t.Context(), dir)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("of %q the version is %q, %v; want %q", says, got, err, want)
		}
	}
	if _, err := AssetsVersion(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), AssetsVariable) {
		t.Errorf("an empty directory: %v, want an error that names %s", err, AssetsVariable)
	}
}
