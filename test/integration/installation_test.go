package integration

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// installation is an operator of the test's own.
type installation struct {
	*deploy.Operator
	cluster *stand.Cluster
	api     client.Client // as the administrator
	logged  int64         // the length of the audit log before the installation
}

// install installs the operator on a control plane. No replica runs yet.
func install(t *testing.T, c *stand.Cluster, profile deploy.Profile) *installation {
	t.Helper()
	i := &installation{cluster: c}
	if info, err := os.Stat(i.auditLog()); err == nil {
		i.logged = info.Size()
	}
	var err error
	if i.api, err = testkit.NewClient(c); err != nil {
		t.Fatal(err)
	}
	if i.Operator, err = deploy.InstallProfile(t.Context(), c, profile); err != nil {
		t.Fatal(err)
	}
	return i
}

func (i *installation) auditLog() string {
	return filepath.Join(i.cluster.Dir, "logs", "kube-apiserver-1.audit.log")
}

// spare is a whole control plane without an operator, which one test at a time has for itself. It
// keeps an audit log.
var spare struct {
	sync.Mutex
	cluster *stand.Cluster
}

// borrow returns the spare control plane. The test returns it as it was: see giveBack.
func borrow(t *testing.T) *stand.Cluster {
	t.Helper()
	operator.NeedReplicas(t)
	spare.Lock()
	t.Cleanup(spare.Unlock)
	if spare.cluster == nil {
		var err error
		if spare.cluster, err = stand.Start(stand.Options{Full: true, Audit: true}); err != nil {
			t.Fatal(err)
		}
		cluster.BeforeStop(func() { _ = spare.cluster.Stop() })
	}
	return spare.cluster
}

// giveBack uninstalls an operator from the spare control plane after the test, and deletes the Pods
// of the namespace default.
func giveBack(t *testing.T, installed *deploy.Operator) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := installed.Uninstall(ctx); err != nil {
			t.Errorf("uninstalling: %v", err)
		}
		now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
		if err := installed.Clients.CoreV1().Pods("default").DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// installApart installs the operator on the spare control plane, until the test ends. No replica
// runs yet.
func installApart(t *testing.T, profile deploy.Profile) *installation {
	t.Helper()
	i := install(t, borrow(t), profile)
	giveBack(t, i.Operator)
	return i
}

// start starts a replica, which ends with the test. No other replica may have its number,
// because a replica's address depends on its number.
func (i *installation) start(t *testing.T, number int, args ...string) *deploy.Replica {
	t.Helper()
	replica, err := i.StartReplica(t.Context(), number, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		replica.Process.Stop()
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", replica.Name, replica.Tail(50))
		}
	})
	return replica
}
