package cluster

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/action"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/ecosystem/helm"
	"github.com/sidecarset/operator/test/testkit"
)

// takeOwnership is --take-ownership --force-conflicts.
func takeOwnership(i *action.Install) { i.TakeOwnership, i.ForceConflicts = true, true }

// refused fails the test unless Helm refuses to install, because an object is another release's or nobody's.
func refused(t *testing.T, h *helm.Client, name, object string) {
	t.Helper()
	_, err := h.Install(name, helm.Directory(), nil)
	if err == nil || !strings.Contains(err.Error(), "cannot be imported into the current release") || !strings.Contains(err.Error(), object) {
		t.Fatalf("installing %s: %v", name, err)
	}
}

func conversionNamespace(t *testing.T) string {
	t.Helper()
	return testkit.Kubectl(t, cluster, "", "get", "crd", deploy.CRD, "-o", "jsonpath={.spec.conversion.webhook.clientConfig.service.namespace}")
}

// OpenKruise has the same definition. While it runs, the definition stays its own.
func TestADefinitionOfAnotherProgram(t *testing.T) {
	h := newHelm(t, deploy.Namespace)
	definition := strings.ReplaceAll(testkit.Kubectl(t, cluster, "", "kustomize", filepath.Join(deploy.Root(), "config/crd")), "sidecarset-system", "kruise-system")
	testkit.Kubectl(t, cluster, definition, "create", "-f", "-")
	defer clean(t, deploy.Namespace)
	refused(t, h, helm.Release, "CustomResourceDefinition")
	if _, err := h.Install(helm.Release, helm.Directory(), nil, "crd.create=false"); err != nil {
		t.Fatal(err)
	}
	if got := conversionNamespace(t); got != "kruise-system" {
		t.Errorf("without the switch, conversions go to %s", got)
	}
	if err := h.Uninstall(helm.Release); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Install(helm.Release, helm.Directory(), takeOwnership); err != nil {
		t.Fatal(err)
	}
	if got := conversionNamespace(t); got != deploy.Namespace {
		t.Errorf("after the ownership was taken, conversions go to %s", got)
	}
	if err := h.Uninstall(helm.Release); err != nil {
		t.Fatal(err)
	}
}

// An installation by kustomize becomes a release. Webhooks stay, so that Pods are injected all the time.
func TestAnInstallationByKustomize(t *testing.T) {
	h := newHelm(t, deploy.Namespace)
	testkit.Kubectl(t, cluster, "", "apply", "--server-side", "-k", filepath.Join(deploy.Root(), "config/default"))
	defer clean(t, deploy.Namespace)
	o, err := deploy.Adopt(t.Context(), cluster, deploy.Default)
	if err != nil {
		t.Fatal(err)
	}
	replica(t, o, 1)
	namespace := newNamespace(t)
	applySidecarSet(t, "adopted", namespace)
	before := webhooks(t)
	refused(t, h, helm.Release, "sidecarset-")
	if _, err := h.Install(helm.Release, helm.Directory(), takeOwnership); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, webhooks(t)); diff != "" {
		t.Errorf("webhooks (-before +after):\n%s", diff)
	}
	testkit.AwaitReady(t, api, "adopted")
	if err := testkit.TryPod(t.Context(), o.Clients, namespace, "adopted", ""); err != nil {
		t.Error(err)
	}
	if err := h.Uninstall(helm.Release); err != nil {
		t.Fatal(err)
	}
	nothingRefusesPods(t, namespace, "adopted")
}

// There is one release in a cluster. The definition that it leaves belongs to its name and namespace.
func TestAnotherReleaseAndNamespace(t *testing.T) {
	first := newHelm(t, deploy.Namespace)
	if _, err := first.Install(helm.Release, helm.Directory(), nil); err != nil {
		t.Fatal(err)
	}
	defer clean(t, deploy.Namespace)
	second := newHelm(t, "elsewhere")
	refused(t, second, "other", "sidecarset")
	if err := first.Uninstall(helm.Release); err != nil {
		t.Fatal(err)
	}
	defer clean(t, "elsewhere")
	refused(t, second, "other", "CustomResourceDefinition")
	if _, err := second.Install("other", helm.Directory(), takeOwnership); err != nil {
		t.Fatal(err)
	}
	if got := conversionNamespace(t); got != "elsewhere" {
		t.Errorf("conversions go to the namespace %s", got)
	}
	if err := second.Uninstall("other"); err != nil {
		t.Fatal(err)
	}
	// The same release again takes what it has left.
	if _, err := second.Install("other", helm.Directory(), nil); err != nil {
		t.Fatal(err)
	}
	if err := second.Uninstall("other"); err != nil {
		t.Fatal(err)
	}
}
