package stand_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/stand"
)

const nodes = 3

var cluster *stand.Cluster

func TestMain(m *testing.M) {
	o := stand.Options{Full: true, Nodes: nodes, APIServers: 2, Namespace: true, Audit: true}
	os.Exit(stand.Main(m, o, func(c *stand.Cluster) { cluster = c }))
}

// api returns a client of the i-th API server.
func api(t *testing.T, i int) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(cluster.ConfigFor(i))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// freshNamespace makes a Kubernetes namespace for one test. Pods can be created
// in it once its ServiceAccount is there.
func freshNamespace(t *testing.T) string {
	t.Helper()
	client := api(t, 0)
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

func template(labels map[string]string, spec corev1.PodSpec) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}
}

func app(image string) corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: image}}}
}

func TestKubectlAndServerHaveTheStampedVersion(t *testing.T) {
	out, err := cluster.Kubectl(t.Context(), "", "version")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Client Version: " + cluster.Version, "Server Version: " + cluster.Version} {
		if !strings.Contains(out, want) {
			t.Errorf("kubectl version does not say %q:\n%s", want, out)
		}
	}
}

func TestDeploymentRuns(t *testing.T) {
	ns, client := freshNamespace(t), api(t, 0)
	labels := map[string]string{"app": "web"}
	_, err := client.AppsV1().Deployments(ns).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(5)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: template(labels, app("web:1")),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "five available replicas", func(ctx context.Context) error {
		d, err := client.AppsV1().Deployments(ns).Get(ctx, "web", metav1.GetOptions{})
		if err == nil && d.Status.AvailableReplicas != 5 {
			err = fmt.Errorf("%d are available", d.Status.AvailableReplicas)
		}
		return err
	})
	pods, err := client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		if pod.Status.Phase != corev1.PodRunning {
			t.Errorf("Pod %s is %s, not Running", pod.Name, pod.Status.Phase)
		}
		if !hasTokenVolume(&pod) {
			t.Errorf("Pod %s has no token volume: the ServiceAccount admission plugin is off", pod.Name)
		}
	}
}

func hasTokenVolume(pod *corev1.Pod) bool {
	for _, volume := range pod.Spec.Volumes {
		if volume.Projected != nil && strings.HasPrefix(volume.Name, "kube-api-access-") {
			return true
		}
	}
	return false
}

func TestDaemonSetRunsOnEveryNode(t *testing.T) {
	ns, client := freshNamespace(t), api(t, 0)
	labels := map[string]string{"app": "agent"}
	_, err := client.AppsV1().DaemonSets(ns).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: template(labels, app("agent:1")),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "a Pod per node", func(ctx context.Context) error {
		d, err := client.AppsV1().DaemonSets(ns).Get(ctx, "agent", metav1.GetOptions{})
		if err == nil && d.Status.NumberReady != nodes {
			err = fmt.Errorf("%d are ready", d.Status.NumberReady)
		}
		return err
	})
}

func TestAPIServersShareTheirState(t *testing.T) {
	if len(cluster.APIServers) != 2 || cluster.APIServers[0] == cluster.APIServers[1] {
		t.Fatalf("API servers are %q, not two", cluster.APIServers)
	}
	ns := freshNamespace(t)
	written, err := api(t, 0).CoreV1().ConfigMaps(ns).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "shared"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	read, err := api(t, 1).CoreV1().ConfigMaps(ns).Get(t.Context(), "shared", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if read.UID != written.UID {
		t.Errorf("the second API server has the ConfigMap %s, the first wrote %s", read.UID, written.UID)
	}
	if out, err := cluster.Kubectl(t.Context(), "", "--context=admin-2", "-n", ns, "get", "configmap", "shared", "-o", "name"); err != nil || out != "configmap/shared\n" {
		t.Errorf("kubectl in the context admin-2 said %q, %v", out, err)
	}
}

func TestAPIServerComesBackAfterACrash(t *testing.T) {
	const name = "kube-apiserver-2"
	before, err := cluster.Component(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.Kill(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if exists(before.Pid) {
		t.Errorf("pid %d is there after the kill", before.Pid)
	}
	if _, err := api(t, 1).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err == nil {
		t.Error("the killed API server answers")
	}
	if _, err := api(t, 0).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Errorf("the other API server does not answer: %v", err)
	}
	if err := cluster.Restart(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if _, err := api(t, 1).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Errorf("the restarted API server does not answer: %v", err)
	}
	after, err := cluster.Component(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if after.Pid == before.Pid || after.Pid == 0 || fmt.Sprint(after.Ports) != fmt.Sprint(before.Ports) {
		t.Errorf("restarted as pid %d at %v; was pid %d at %v", after.Pid, after.Ports, before.Pid, before.Ports)
	}
}

func TestEtcdRestartsWithItsData(t *testing.T) {
	ns, client := freshNamespace(t), api(t, 0)
	if err := cluster.Restart(t.Context(), "etcd"); err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "the namespace written before", func(ctx context.Context) error {
		_, err := client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		return err
	})
}

func TestAuditLogIsWritten(t *testing.T) {
	ns := freshNamespace(t)
	await.Eventually(t, "a line about the namespace "+ns, func(context.Context) error {
		text, err := os.ReadFile(cluster.Dir + "/logs/kube-apiserver-1.audit.log")
		if err == nil && !strings.Contains(string(text), `"namespace":"`+ns+`"`) {
			err = errors.New("there is none")
		}
		return err
	})
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
