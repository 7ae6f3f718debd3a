// Package node tests on a real node: kubelet, containerd and runc run the Pods of a real
// control plane, and the operator as Pods from its own image. It proves what the design
// assumes about kubelets; the files in internal/podstate/testdata/kubelet say them.
package node

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/manifests"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

var (
	cluster *stand.Cluster
	clients kubernetes.Interface
	api     client.Client
	machine *Machine
)

// dirVariable is the environment variable that is set inside the namespaces. It names the
// directory with the programs that were built outside.
const dirVariable = "NODE_DIR"

func TestMain(m *testing.M) {
	flag.Parse()
	var code int
	var err error
	switch {
	case flag.Lookup("test.list").Value.String() != "":
		code = m.Run()
	case testing.Short():
		fmt.Println("SKIP: these tests need a node, and -short was given")
	case os.Getenv(dirVariable) != "":
		code = inside(m)
	default:
		if reason := missing(); reason != "" {
			fmt.Println("SKIP: the node tier needs", reason)
			break
		}
		if code, err = outside(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "node:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// missing says what this machine lacks to be a node.
func missing() string {
	if os.Geteuid() != 0 {
		return "root: kubelet and containerd make mounts, cgroups and network devices"
	}
	for _, needed := range []struct{ program, debian string }{
		{"containerd", "containerd"}, {"runc", "runc"}, {filepath.Join(cniDir, "bridge"), "containernetworking-plugins"},
	} {
		if _, err := exec.LookPath(needed.program); err != nil {
			return fmt.Sprintf("%s (Debian package %s)", needed.program, needed.debian)
		}
	}
	return ""
}

// outside builds what the tests need, and runs them in namespaces without access to the network
// outside. They leave only files and cgroups, and outside removes these.
func outside(ctx context.Context) (code int, err error) {
	if err := removeStale(); err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", prefix, os.Getpid()))
	if err != nil {
		return 1, err
	}
	defer func() {
		if failed := os.RemoveAll(dir); failed != nil && err == nil {
			err = failed
		}
	}()
	if err := build(ctx, dir); err != nil {
		return 1, err
	}
	defer func() {
		if failed := removeCgroups(filepath.Base(dir)); failed != nil && err == nil {
			err = failed
		}
	}()
	return stand.Isolated(dirVariable + "=" + dir)
}

// prefix begins the names of the directory and of the cgroups. The process id of their owner
// follows.
const prefix = "sidecarset-node-"

// removeStale removes the directories and cgroups of owners that were killed.
func removeStale() error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		name := filepath.Base(dir)
		pid, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), "-")
		if _, err := os.Stat(filepath.Join("/proc", pid)); err == nil {
			continue
		}
		if err := removeCgroups(name); err != nil {
			return err // dir remains, so that the next run finds the cgroups by its name
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// inside runs the tests on a control plane with one node.
func inside(m *testing.M) int {
	if err := flag.Set("test.parallel", "12"); err != nil { // tests wait for the kubelet, they do not compute
		panic(err)
	}
	return stand.Main(m, stand.Options{Full: true}, begin)
}

func begin(ctx context.Context, c *stand.Cluster) error {
	cluster = c
	var err error
	if clients, err = kubernetes.NewForConfig(cluster.Config()); err != nil {
		return err
	}
	if api, err = testkit.NewClient(cluster); err != nil {
		return err
	}
	if machine, err = StartMachine(ctx, cluster, os.Getenv(dirVariable)); err != nil {
		return err
	}
	if err := install(ctx); err != nil {
		return err
	}
	return testkit.UntilCalled(ctx, api)
}

// install applies the manifests of `make deploy` with the image in the registry, and waits until
// the operator's Pods are Ready.
func install(ctx context.Context) error {
	text, err := manifests.Build(filepath.Join(deploy.Root(), "config/default"))
	if err != nil {
		return err
	}
	text = regexp.MustCompile(`image: registry\.invalid/.*`).ReplaceAllString(text, "image: "+registry+"/"+operatorImage)
	if _, err := cluster.Kubectl(ctx, text, "apply", "--server-side", "-f", "-"); err != nil {
		return err
	}
	if _, err = cluster.Kubectl(ctx, "", "-n", deploy.Namespace, "rollout", "status", "deployment", "--timeout="+(2*await.Patience).String()); err != nil {
		pods, _ := cluster.Kubectl(ctx, "", "-n", deploy.Namespace, "describe", "pods")
		logs, _ := cluster.Kubectl(ctx, "", "-n", deploy.Namespace, "logs", "--tail=20", "-l", "app.kubernetes.io/name=sidecarset-operator")
		err = fmt.Errorf("%w\n%s\n%s", err, pods, logs)
	}
	return err
}

// build puts the programs that tests run into dir.
func build(ctx context.Context, dir string) error {
	for _, args := range [][]string{
		{"build", "-C", filepath.Join(deploy.Root(), "hack/image"), "-buildvcs=false", "-o", filepath.Join(dir, "image"), "."},
		{"build", "-C", deploy.Root(), "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, "program"), "./test/node/program"},
	} {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %v: %w: %s", args, err, said)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "notices"), []byte("of hack/notices, in a release\n"), 0o644); err != nil {
		return err
	}
	operator, err := deploy.Program()
	if err != nil {
		return err
	}
	return os.Symlink(operator, filepath.Join(dir, "operator"))
}
