package integration

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
	"github.com/sidecarset/operator/test/testkit"
)

// installation is an operator on a control plane of the test's own.
type installation struct {
	*deploy.Operator
	cluster *stand.Cluster
	api     client.Client // as the administrator
}

// newInstallation starts a control plane and installs the operator on it. No
// replica runs yet. All of it ends with the test.
func newInstallation(t *testing.T, options stand.Options, layout deploy.Layout) *installation {
	t.Helper()
	c := testkit.StartCluster(t, options)
	i := &installation{cluster: c}
	var err error
	if i.api, err = testkit.NewClient(c); err != nil {
		t.Fatal(err)
	}
	if i.Operator, err = deploy.InstallLayout(t.Context(), c, layout); err != nil {
		t.Fatal(err)
	}
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
