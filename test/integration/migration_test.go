package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
)

// SidecarSets that an older installation stored as v1alpha1 can be listed only when a replica
// serves /convert. For this it needs a certificate, for a certificate a leader is needed, and API
// servers call ready replicas only. The operator must start all the same.
func TestStartsOverObjectsStoredAsV1alpha1(t *testing.T) {
	old := borrow(t)
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
	if err := old.Established(t.Context(), "crd/"+deploy.CRD); err != nil {
		t.Fatal(err)
	}
	const stored = `
apiVersion: apps.kruise.io/v1alpha1
kind: SidecarSet
metadata: {name: old}
spec:
  namespace: default
  selector: {matchLabels: {app: old}}
  containers: [{name: side, image: "example.com/side:v1"}]
`
	await.Eventually(t, "a SidecarSet as v1alpha1", func(ctx context.Context) error { // API servers serve a kind a little after the CRD is Established
		_, err := old.Kubectl(ctx, stored, "apply", "-f", "-")
		return err
	})

	there, err := deploy.Install(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	giveBack(t, there)
	replica, err := there.StartReplica(t.Context(), 9)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(replica.Process.Stop)
	await.Eventually(t, "injection", func(ctx context.Context) error { // it is ready, so that it converts, before it has read the SidecarSet
		return replica.Injects(ctx, "old", "default", map[string]string{"app": "old"})
	})
	c, err := client.New(old.Config(), client.Options{Scheme: api.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	await.Eventually(t, "the status", func(ctx context.Context) error {
		set := &appsv1beta1.SidecarSet{}
		err := c.Get(ctx, client.ObjectKey{Name: "old"}, set)
		if err == nil && set.Status.ObservedGeneration != set.Generation {
			err = fmt.Errorf("observed generation %d of %d", set.Status.ObservedGeneration, set.Generation)
		}
		return err
	})
}

// A program that manages OpenKruise's CRDs may write its own conversion webhook into the CRD.
// The operator still injects Pods, and does not write its CA bundle there.
func TestAnotherConversionWebhookIsLeftAlone(t *testing.T) {
	t.Run("while it is there", whileAnotherConverts)
	awaitDefinition(t)
}

func whileAnotherConverts(t *testing.T) {
	read := func(ctx context.Context, path string) string {
		out, err := cluster.Kubectl(ctx, "", "get", "crd", deploy.CRD, "-o", "jsonpath={.spec.conversion.webhook.clientConfig"+path+"}")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	point := func(clientConfig string) {
		t.Helper()
		patch := `[{"op": "replace", "path": "/spec/conversion/webhook/clientConfig", "value": ` + clientConfig + `}]`
		if _, err := cluster.Kubectl(context.WithoutCancel(t.Context()), "", "patch", "crd", deploy.CRD, "--type=json", "-p", patch); err != nil {
			t.Fatal(err)
		}
	}
	ours := read(t.Context(), "")
	t.Cleanup(func() { point(ours) })
	point(`{"service": {"namespace": "kruise-system", "name": "kruise-webhook-service", "path": "/convert"}}`)
	await.Eventually(t, "a word of it", func(context.Context) error {
		for _, replica := range replicas {
			if strings.Contains(replica.Log(), "calls kruise-webhook-service.kruise-system.svc, which is not this operator") {
				return nil
			}
		}
		return errors.New("no replica says that conversions go elsewhere")
	})
	if bundle := read(t.Context(), ".caBundle"); bundle != "" {
		t.Errorf("the bundle is %s", bundle)
	}
	for _, replica := range replicas {
		await.Eventually(t, "readiness of "+replica.Name, replica.Ready)
	}
}

// awaitDefinition waits, after a write of the CustomResourceDefinition, until the API server
// and all replicas have followed it: conversions work, and replicas know a new SidecarSet.
// The next test relies on it.
func awaitDefinition(t *testing.T) {
	t.Helper()
	const spec = "selector: {matchLabels: {app: definition}}\n" + inNamespace + "containers: [{name: side, image: \"example.com/side:v1\"}]\n"
	await.Eventually(t, "a conversion", func(ctx context.Context) error {
		set := newSidecarSet(t, "default", spec)
		set.SetGroupVersionKind(v1alpha1)
		return api.Create(ctx, set, client.DryRunAll)
	})
	var set *unstructured.Unstructured
	await.Eventually(t, "a SidecarSet", func(ctx context.Context) error {
		set = newSidecarSet(t, "default", spec)
		return api.Create(ctx, set)
	})
	t.Cleanup(func() { deleteSidecarSet(t, set) })
	awaitInjected(t, set, "default", "app=definition")
}
