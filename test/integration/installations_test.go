package integration

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// These tests install the operator in their own way, one after the other. For that, the operator of
// all other tests is uninstalled, and comes back at the end.
func TestInstallations(t *testing.T) {
	operator.NeedReplicas(t)
	for _, replica := range replicas {
		replica.Process.Stop()
	}
	if err := operator.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := installOperator(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("takes over what OpenKruise has stored", takesOverOpenKruise)
	t.Run("static mode writes no webhooks", staticModeWritesNoWebhooks)
	t.Run("uses exactly its rights", usesExactlyItsRights)
	t.Run("without an operator, the policy for required sidecars", policyJudgesAsTheEngine)
}

// installation is an operator of the test's own.
type installation struct {
	*deploy.Operator
	logged int64 // the length of the audit log before the installation
}

func auditLog() string { return filepath.Join(cluster.Dir, "logs", "kube-apiserver-1.audit.log") }

// installApart installs the operator until the test ends. No replica runs yet.
func installApart(t *testing.T, profile deploy.Profile) *installation {
	t.Helper()
	i := &installation{}
	info, err := os.Stat(auditLog())
	if err != nil {
		t.Fatal(err)
	}
	i.logged = info.Size()
	if i.Operator, err = deploy.InstallProfile(t.Context(), cluster, profile); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Uninstall(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("uninstalling: %v", err)
		}
	})
	return i
}

// start starts a replica, which ends with the test. No other replica may have its number,
// because a replica's address depends on its number.
func (i *installation) start(t *testing.T, number int, args ...string) *deploy.Replica {
	t.Helper()
	replica := i.StartApart(t, number, args...)
	if err := replica.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := i.AddEndpoint(t.Context(), replica); err != nil {
		t.Fatal(err)
	}
	testkit.AwaitCalled(t, api)
	return replica
}

// If an administrator keeps one entry for all Pods, the operator writes no entry, and
// SidecarSets become Ready all the same.
func staticModeWritesNoWebhooks(t *testing.T) {
	i := installApart(t, deploy.Static)
	i.start(t, 20)
	defer expectNoRefusal(t, i) // the layout takes rights away
	createSidecarSet(t, "default", onlyHere("static"))
	p := pod("default", "static", "app=static")
	create(t, p)
	if diff := cmp.Diff([]string{"side-static", "app"}, testkit.ContainerNames(p.Spec.Containers)); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	shards, _, err := testkit.Shards(t.Context(), i.Clients)
	for _, s := range shards {
		if err != nil || s != nil && !s.IsEmpty() {
			t.Errorf("a shard is %+v, %v", s, err)
		}
	}
}
