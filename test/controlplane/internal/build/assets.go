package build

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// AssetsVariable is the environment variable that names a directory with etcd, kube-apiserver and
// kubectl, as setup-envtest downloads them. If it is set, nothing is built.
const AssetsVariable = "KUBEBUILDER_ASSETS"

// AssetsVersion returns the Kubernetes version of the programs in a directory.
func AssetsVersion(ctx context.Context, dir string) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "kube-apiserver"), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("asking the kube-apiserver in %s (%s) for its version: %w", dir, AssetsVariable, err)
	}
	version, found := strings.CutPrefix(strings.TrimSpace(string(out)), "Kubernetes ")
	if !found {
		return "", fmt.Errorf("the kube-apiserver in %s says that its version is %q", dir, out)
	}
	return version, nil
}
