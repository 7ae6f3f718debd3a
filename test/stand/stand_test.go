package stand_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/stand"
)

var cluster *stand.Cluster

func TestMain(m *testing.M) {
	os.Exit(stand.Main(m, stand.Options{Full: true, Nodes: 3}, func(c *stand.Cluster) { cluster = c }))
}

func api(t *testing.T) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// freshNamespace makes a Kubernetes namespace for one test. Pods can be created
// in it once its ServiceAccount is there.
func freshNamespace(t *testing.T) string {
	t.Helper()
	client := api(t)
	ns, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "the ServiceAccount default", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return ns.Name
}

func TestStopLeavesNoProcess(t *testing.T) {
	c, pids := startSmall(t)
	answered := false
	c.BeforeStop(func() {
		_, err := c.Kubectl(t.Context(), "", "get", "namespaces")
		answered = err == nil
	})
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if !answered {
		t.Error("the cluster did not answer before it was stopped")
	}
	for _, pid := range pids {
		if exists(pid) {
			t.Errorf("pid %d is there after Stop", pid)
		}
	}
	if _, err := os.Stat(c.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data directory %s is there after Stop: %v", c.Dir, err)
	}
}

func TestComponentsDieWithTheLauncher(t *testing.T) {
	c, pids := startSmall(t)
	if err := syscall.Kill(c.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "all components gone", func(context.Context) error {
		for _, pid := range pids {
			if exists(pid) {
				return fmt.Errorf("pid %d is there", pid)
			}
		}
		return nil
	})
	if err := c.Stop(); err == nil {
		t.Error("Stop does not say that the launcher was killed")
	}
	_ = os.RemoveAll(c.Dir) // the launcher would have done it
}

func TestStandEndsWhenAComponentDies(t *testing.T) {
	c, pids := startSmall(t)
	etcd, err := c.Component(t.Context(), "etcd")
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(etcd.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "all processes gone", func(context.Context) error {
		for _, pid := range pids {
			if exists(pid) {
				return fmt.Errorf("pid %d is there", pid)
			}
		}
		return nil
	})
	logs := c.Dir + "/logs"
	if err := c.Stop(); err == nil || !strings.Contains(err.Error(), logs) {
		t.Errorf("Stop does not say that the stand had failed and where the logs are: %v", err)
	}
	if _, err := os.Stat(logs + "/etcd.log"); err != nil {
		t.Errorf("the logs are not there: %v", err)
	}
	_ = os.RemoveAll(c.Dir)
}

func TestClusterThatCannotStartLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	c, err := stand.Start(stand.Options{APIServers: 3})
	if err == nil {
		_ = c.Stop()
		t.Fatal("three API servers started")
	}
	left, err := os.ReadDir(os.TempDir())
	if err != nil || len(left) > 0 {
		t.Errorf("%v, %v are left", left, err)
	}
}

// startSmall starts a second cluster and returns the pids of all its processes.
func startSmall(t *testing.T) (*stand.Cluster, []int) {
	t.Helper()
	c, err := stand.Start(stand.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Stop() })
	components, err := c.Components(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pids := []int{c.Pid}
	for _, component := range components {
		pids = append(pids, component.Pid)
	}
	if len(pids) != 3 {
		t.Fatalf("components are %v, not etcd and one API server", components)
	}
	return c, pids
}

// exists reports whether there is such a process. A process that ended without a wait of its
// parent exists: its parent must wait for it.
func exists(pid int) bool {
	return syscall.Kill(pid, 0) == nil
}
