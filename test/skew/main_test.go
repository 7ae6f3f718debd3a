package skew

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// gates let the API server keep the members that are new in 1.37.
const gates = "kube-apiserver=--feature-gates=H2CContainerProbe=true,GRPCContainerProbeTLS=true,VolumeBindMountOptions=true,AtomicWriteVolumeUserFields=true"

var (
	replicas []*deploy.Replica
	api      client.Client
)

func TestMain(m *testing.M) {
	options := stand.Options{Namespace: true, K8sVersion: "v1.37.1", Args: []string{gates}}
	os.Exit(stand.Main(m, options, func(c *stand.Cluster) {
		if err := begin(context.Background(), c); err != nil {
			fmt.Fprintln(os.Stderr, "skew:", err)
			os.Exit(1) // the cluster ends with this process
		}
	}))
}

// begin installs the older operator and waits until the API server reaches its webhooks.
func begin(ctx context.Context, c *stand.Cluster) error {
	program, err := older(ctx)
	if err != nil {
		return err
	}
	deploy.Program = func() (string, error) { return program, nil }
	if api, err = testkit.NewClient(c); err != nil {
		return err
	}
	operator, err := deploy.Install(ctx, c)
	if err != nil {
		return err
	}
	if replicas, err = operator.StartReplicas(ctx); err != nil {
		return err
	}
	return testkit.UntilCalled(ctx, api)
}

// older returns an operator with the older libraries: $OPERATOR_OLDER, or one that it builds now.
// It returns an error if the binary has other libraries.
func older(ctx context.Context) (string, error) {
	program := os.Getenv("OPERATOR_OLDER")
	if program == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		program = filepath.Join(cache, "sidecarset-operator", "test", "sidecarset-operator-v0.36")
		cmd := exec.CommandContext(ctx, "go", "build", "-C", deploy.Root(), "-buildvcs=false", "-modfile=test/skew/go.v0.36.mod", "-o", program, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("building the operator: %w: %s", err, out)
		}
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "", err
	}
	for _, module := range info.Deps {
		if module.Path == "k8s.io/api" && module.Replace != nil && strings.HasPrefix(module.Replace.Version, "v0.36.") {
			return program, nil
		}
	}
	return "", fmt.Errorf("%s is not built against k8s.io/api v0.36", program)
}
