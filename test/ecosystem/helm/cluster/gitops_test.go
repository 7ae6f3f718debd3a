package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/ecosystem/helm"
	"github.com/sidecarset/operator/test/manifests"
	"github.com/sidecarset/operator/test/testkit"
)

// Manifests that are applied again change nothing, in whatever way, while the operator has written bundles and webhooks.
func TestNoDrift(t *testing.T) {
	h := newHelm(t, deploy.Namespace)
	text, err := manifests.Build(filepath.Join(deploy.Root(), "config/default"))
	if err != nil {
		t.Fatal(err)
	}
	byKubectl := func(args ...string) func(*testing.T) {
		return func(t *testing.T) { testkit.Kubectl(t, cluster, text, append(args, "-f", "-")...) }
	}
	deleted := byKubectl("delete", "--ignore-not-found", "--timeout="+await.Patience.String())
	release, err := helm.Template(deploy.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	for name, tool := range map[string]struct {
		objects              []*unstructured.Unstructured
		apply, again, remove func(*testing.T)
		diff                 []string // of kubectl, where it is the tool
	}{
		"client-side apply": {documents(t, text), byKubectl("apply"), byKubectl("apply"), deleted, []string{"diff", "-f", "-"}},
		"server-side apply": {documents(t, text), byKubectl("apply", "--server-side"), byKubectl("apply", "--server-side"), argoDeletes(documents(t, text)), []string{"diff", "--server-side", "-f", "-"}},
		"Helm": {documents(t, release.Manifest),
			func(t *testing.T) {
				if _, err := h.Install(helm.Release, helm.Directory(), nil); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T) {
				if err := h.Upgrade(t.Context(), helm.Release, helm.Directory(), nil); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T) {
				if err := h.Uninstall(helm.Release); err != nil {
					t.Error(err)
				}
			}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			defer clean(t, deploy.Namespace)
			defer tool.remove(t)
			tool.apply(t)
			o, err := deploy.Adopt(t.Context(), cluster, deploy.Default)
			if err != nil {
				t.Fatal(err)
			}
			r := replica(t, o, 1)
			namespace := newNamespace(t)
			applySidecarSet(t, "drift", namespace)
			before := stored(t, tool.objects)
			tool.again(t)
			if changed := changes(before, stored(t, tool.objects)); len(changed) > 0 {
				t.Errorf("applying again has changed %s", strings.Join(changed, "\n"))
			}
			if tool.diff != nil {
				command := exec.CommandContext(t.Context(), filepath.Join(cluster.BinDir, "kubectl"), append(tool.diff, "--kubeconfig="+cluster.Kubeconfig)...)
				command.Stdin = strings.NewReader(text)
				if out, err := command.CombinedOutput(); err != nil {
					t.Errorf("kubectl %s: %v: %s", strings.Join(tool.diff, " "), err, out)
				}
			}
			set := testkit.NewPatientSet("drift", namespace)
			for _, object := range append(tool.objects, set) {
				argoSeesNoDifference(t, object)
				fluxSees(t, object)
			}
			if err := r.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// argoSeesNoDifference does what Argo CD's server-side diff does: it applies the manifest under dry-run, and compares the answer with
// the stored object.
func argoSeesNoDifference(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(object.GroupVersionKind())
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(object), live); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	applied := object.DeepCopy()
	options := &client.PatchOptions{FieldManager: "argocd-controller", Force: new(true), FieldValidation: metav1.FieldValidationStrict, DryRun: []string{metav1.DryRunAll}}
	if err := api.Patch(t.Context(), applied, client.RawPatch(types.ApplyPatchType, text), options); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*unstructured.Unstructured{live, applied} {
		unstructured.RemoveNestedField(o.Object, "metadata", "generation") // a dry run raises it if only the managers change
	}
	if a, b := bare(t, live), bare(t, applied); a != b {
		t.Errorf("Argo CD sees a difference in %s %s: stored is %s, and wanted is %s", object.GetKind(), object.GetName(), a, b)
	}
}

// argoDeletes returns a function that deletes what Argo CD deletes with an Application: neither definitions nor objects that have an
// owner. Those go with the Namespace.
func argoDeletes(objects []*unstructured.Unstructured) func(*testing.T) {
	return func(t *testing.T) {
		for _, object := range objects {
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
				t.Error(err)
				continue
			}
			if kind := object.GetKind(); kind == "Namespace" || kind == "CustomResourceDefinition" || len(object.GetOwnerReferences()) > 0 {
				continue
			}
			if err := api.Delete(t.Context(), object); err != nil {
				t.Error(err)
			}
		}
		if left := shards(t); len(left) != 16 {
			t.Errorf("Argo CD leaves %d shards; docs/gitops.md says that it leaves all", len(left))
		}
		clean(t, deploy.Namespace)
		await.Eventually(t, "shards go with the Namespace", func(context.Context) error {
			if left := shards(t); len(left) > 0 {
				return fmt.Errorf("there are %d", len(left))
			}
			return nil
		})
	}
}

// fluxSees waits until Flux calls the stored object Current. There is no node, so Deployments are InProgress.
func fluxSees(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	want := status.CurrentStatus
	if object.GetKind() == "Deployment" {
		want = status.InProgressStatus
	}
	await.Eventually(t, fmt.Sprintf("%s %s is %s", object.GetKind(), object.GetName(), want), func(ctx context.Context) error {
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(object.GroupVersionKind())
		if err := api.Get(ctx, client.ObjectKeyFromObject(object), live); err != nil {
			return err
		}
		result, err := status.Compute(live)
		if err == nil && result.Status != want {
			err = errors.New(result.Status.String() + ": " + result.Message)
		}
		return err
	})
}
