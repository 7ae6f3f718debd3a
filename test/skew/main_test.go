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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
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

// begin installs the older operator and waits until its webhooks are reached.
func begin(ctx context.Context, c *stand.Cluster) error {
	program, err := older(ctx)
	if err != nil {
		return err
	}
	deploy.Program = func(context.Context) (string, error) { return program, nil }
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	if err := appsv1beta1.AddToScheme(scheme); err != nil {
		return err
	}
	if api, err = client.New(c.Config(), client.Options{Scheme: scheme}); err != nil {
		return err
	}
	operator, err := deploy.Install(ctx, c)
	if err != nil {
		return err
	}
	if replicas, err = operator.StartReplicas(ctx); err != nil {
		return err
	}
	return untilCalled(ctx)
}

// older returns a binary with the older libraries: $OPERATOR_OLDER, or one that
// is built now. It is an error if it has others.
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

// untilCalled waits until the API server reaches the webhooks.
func untilCalled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stand.Patience)
	defer cancel()
	probe := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "probe"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "example.com/app:v1"}}},
	}
	for {
		err := api.Create(ctx, probe.DeepCopy(), client.DryRunAll)
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}
