package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// restoring is a cluster whose etcd is restored from a backup. The test has a cluster of its
// own, because a restore would break the other tests.
type restoring struct {
	cluster  *stand.Cluster
	operator *deploy.Operator
	api      client.Client
	sets     dynamic.ResourceInterface
	replicas [2]*deploy.Replica // the second one elects no leader
}

func newRestoring(t *testing.T) *restoring {
	t.Helper()
	operator.NeedReplicas(t)
	r := &restoring{cluster: testkit.StartCluster(t, stand.Options{})}
	var err error
	if r.operator, err = deploy.Install(t.Context(), r.cluster); err != nil {
		t.Fatal(err)
	}
	if r.api, err = testkit.NewClient(r.cluster); err != nil {
		t.Fatal(err)
	}
	untyped, err := dynamic.NewForConfig(r.cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	r.sets = untyped.Resource(appsv1beta1.GroupVersion.WithResource("sidecarsets"))
	t.Cleanup(func() {
		for _, replica := range r.replicas {
			if replica != nil {
				replica.Process.Stop()
				replica.CheckLog(t)
			}
		}
	})
	for i := range r.replicas {
		r.start(t, i)
	}
	return r
}

func (r *restoring) start(t *testing.T, i int) {
	t.Helper()
	args := [][]string{takeoverLeases, {"--role=webhook"}}[i] // the backup holds the Lease of the leader before
	replica, err := r.operator.StartReplica(t.Context(), i+1, args...)
	if err != nil {
		t.Fatal(err)
	}
	r.replicas[i] = replica
}

// apply creates or changes SidecarSets.
func (r *restoring) apply(t *testing.T, image string, names ...string) {
	t.Helper()
	for _, name := range names {
		await.Eventually(t, "SidecarSet "+name, func(ctx context.Context) error {
			set := testkit.NewSet(name, metav1.NamespaceDefault, testkit.AppLabels(name))
			set.Object["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)["image"] = image
			_, err := r.sets.Apply(ctx, name, set, metav1.ApplyOptions{FieldManager: "test", Force: true})
			return err
		})
	}
}

// awaitImage waits until each of the next Pods of a SidecarSet gets that image; "" is no sidecar.
func (r *restoring) awaitImage(t *testing.T, name, want string) {
	t.Helper()
	await.Eventually(t, "Pods of SidecarSet "+name, func(ctx context.Context) error {
		for range 2 * len(r.replicas) {
			pod, err := r.operator.Clients.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, testkit.NewPod(testkit.AppLabels(name)), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				return err
			}
			if got := testkit.WantedImage(pod, name); got != want {
				return fmt.Errorf("the image is %q, want %q", got, want)
			}
		}
		return nil
	})
}

// backup pauses etcd, and copies its data directory meanwhile.
func (r *restoring) backup(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "etcd")
	if err := r.cluster.Signal(t.Context(), "etcd", syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	err := os.CopyFS(dir, os.DirFS(filepath.Join(r.cluster.Dir, "etcd")))
	if err := errors.Join(err, r.cluster.Signal(t.Context(), "etcd", syscall.SIGCONT)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// restore does what an administrator does: it stops the API server and etcd, replaces etcd's
// data directory by the copy, and starts both.
func (r *restoring) restore(t *testing.T, backup string) {
	t.Helper()
	data := filepath.Join(r.cluster.Dir, "etcd")
	for _, step := range []func() error{
		func() error { return r.cluster.Kill(t.Context(), "kube-apiserver-1") },
		func() error { return r.cluster.Kill(t.Context(), "etcd") },
		func() error { return os.RemoveAll(data) },
		func() error { return os.CopyFS(data, os.DirFS(backup)) },
		func() error { return r.cluster.Restart(t.Context(), "etcd") },
		func() error { return r.cluster.Restart(t.Context(), "kube-apiserver-1") },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
}

// revive waits until each replica has ended because of the restore, and starts it again, as a kubelet does. The
// leader may have lost its Lease before.
func (r *restoring) revive(t *testing.T) {
	t.Helper()
	for i, replica := range r.replicas {
		await.Eventually(t, replica.Name+" to notice", func(context.Context) error {
			if replica.Running() {
				return errors.New("it goes on with what it has seen")
			}
			return nil
		})
		if log := replica.Log(); !strings.Contains(log, "restored from a backup") && (i > 0 || !strings.Contains(log, "leader election lost")) {
			t.Errorf("%s has ended:\n%s", replica.Name, replica.Tail(30))
		}
	}
	for i := range r.replicas {
		r.start(t, i)
	}
}

// After a restore, the cluster's versions begin again below those that processes have seen.
// Then watches stay silent, and snapshots hold objects that are not stored any more. So
// every process must end by itself and start again.
func TestARestoredEtcdIsNoticedByEveryProcess(t *testing.T) {
	const v1, v2, v3 = "example.com/sidecar:v1", "example.com/sidecar:v2", "example.com/sidecar:v3"
	r := newRestoring(t)
	r.apply(t, v1, "kept", "changed")
	r.awaitImage(t, "kept", v1)
	r.awaitImage(t, "changed", v1)
	backup := r.backup(t)

	// The backup does not contain these changes. They are so many that the versions of the restored
	// cluster stay below them until processes look again.
	r.apply(t, v2, "changed", "lost")
	r.awaitImage(t, "changed", v2)
	r.awaitImage(t, "lost", v2)
	for i := range 300 {
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("other-%d", i)}}
		if _, err := r.operator.Clients.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(12 * time.Second) // processes look at the version of etcd every ten seconds

	r.restore(t, backup)
	answers := time.Now()
	r.revive(t)
	testkit.Report(t, "all replicas are anew and ready %s after the API server answers", testkit.Rounded(time.Since(answers)))
	r.awaitImage(t, "changed", v1)
	r.awaitImage(t, "kept", v1)
	r.awaitImage(t, "lost", "")
	r.apply(t, v3, "changed", "new")
	r.awaitImage(t, "changed", v3)
	r.awaitImage(t, "new", v3)
	testkit.AwaitReady(t, r.api, "kept", "changed", "new")
}
