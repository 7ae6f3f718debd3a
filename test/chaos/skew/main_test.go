package skew

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
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
	if os.Getenv(olderVariable) == "" {
		fmt.Println("SKIP: there is no operator with older libraries: make chaos builds it and sets " + olderVariable)
		return
	}
	options := stand.Options{Namespace: true, K8sVersion: "v1.37.2", Args: []string{gates}}
	os.Exit(stand.Main(m, options, begin))
}

// begin installs the older operator and waits until the API server reaches its webhooks.
func begin(ctx context.Context, c *stand.Cluster) (err error) {
	program := os.Getenv(olderVariable)
	if err := checkOlder(program); err != nil {
		return err
	}
	deploy.Program = func() (string, error) { return program, nil }
	api, _, replicas, err = testkit.Begin(ctx, c)
	return err
}

// olderVariable is the environment variable with the path of an operator that was built with the
// libraries of one minor version earlier.
const olderVariable = "OPERATOR_OLDER"

// checkOlder returns an error if the program has other libraries.
func checkOlder(program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	for _, module := range info.Deps {
		if module.Path == "k8s.io/api" && module.Replace != nil && strings.HasPrefix(module.Replace.Version, "v0.36.") {
			return nil
		}
	}
	return fmt.Errorf("%s is not built against k8s.io/api v0.36", program)
}
