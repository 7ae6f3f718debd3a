package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/stand"
)

// SidecarSets that an older installation stored as v1alpha1 can be listed only
// when /convert is served, which takes a certificate, which takes a leader: the
// operator must come up all the same.
func TestStartsOverObjectsStoredAsV1alpha1(t *testing.T) {
	operator.NeedReplicas(t)
	old, err := stand.Start(stand.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := old.Stop(); err != nil {
			t.Error(err)
		}
	})
	kubectl := func(stdin string, args ...string) {
		t.Helper()
		if _, err := old.Kubectl(t.Context(), stdin, args...); err != nil {
			t.Fatal(err)
		}
	}
	definition, err := os.ReadFile(filepath.Join(deploy.Root(), "config/crd/bases/apps.kruise.io_sidecarsets.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	swap := strings.NewReplacer("storage: true", "storage: false", "storage: false", "storage: true")
	kubectl(swap.Replace(string(definition)), "apply", "--server-side", "-f", "-")
	kubectl("", "wait", "--for=condition=Established", "crd/"+deploy.CRD, "--timeout=30s")
	kubectl(`
apiVersion: apps.kruise.io/v1alpha1
kind: SidecarSet
metadata: {name: old}
spec:
  namespace: default
  selector: {matchLabels: {app: old}}
  containers: [{name: side, image: "example.com/side:v1"}]
`, "apply", "-f", "-")

	there, err := deploy.Install(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	replica, err := there.StartReplica(t.Context(), 9)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(replica.Process.Stop)
	if err := replica.Injects(t.Context(), "old", "default", map[string]string{"app": "old"}); err != nil {
		t.Error(err)
	}
	c, err := client.New(old.Config(), client.Options{Scheme: api.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	stand.Eventually(t, 20*time.Second, "the status", func(ctx context.Context) error {
		set := &appsv1beta1.SidecarSet{}
		err := c.Get(ctx, client.ObjectKey{Name: "old"}, set)
		if err == nil && set.Status.ObservedGeneration != set.Generation {
			err = fmt.Errorf("observed generation %d of %d", set.Status.ObservedGeneration, set.Generation)
		}
		return err
	})
}
