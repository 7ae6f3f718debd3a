package integration

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/testkit"
)

// A tenant may take a container's name in their own namespace. An administrator can still
// apply a SidecarSet for all namespaces that has a container of that name. A Pod that both
// SidecarSets select is refused with the reason.
func TestANarrowerSidecarSetDoesNotKeepAWiderOneOut(t *testing.T) {
	tenants, elsewhere := testkit.Namespace(t, api, nil), testkit.Namespace(t, api, nil)
	app := "app=" + tenants // this test's own Pods
	spec := strings.ReplaceAll(requesterSpec, "app: web", "app: NS")
	squat := createSidecarSet(t, tenants, spec+inNamespace)
	awaitInjected(t, squat, tenants, app) // either replica may be asked about the wider one

	admin := newUser(t, cluster, api, "mesh-admin", "system:aggregate-to-edit")
	mesh := newSidecarSet(t, tenants, spec+"initContainers: [{name: prepare, image: \"example.com/prepare:v1\"}]\n")
	if err := admin.Create(t.Context(), mesh); err != nil {
		t.Fatalf("the wider one is refused: %v", err)
	}
	t.Cleanup(func() { deleteSidecarSet(t, mesh) })
	told := admin.told()
	for _, part := range []string{`"side" is a container of SidecarSet ` + squat.GetName() + " as well, in fewer namespaces", "a Pod that both select is refused"} {
		if !strings.Contains(told, part) {
			t.Errorf("the author was warned of %q, want %q", told, part)
		}
	}
	testkit.AwaitObserved(t, api, mesh.GetName())
	testkit.AwaitReady(t, api, mesh.GetName())

	err := api.Create(t.Context(), pod(tenants, "both", app), client.DryRunAll)
	if err == nil || !strings.Contains(err.Error(), squat.GetName()) || !strings.Contains(err.Error(), mesh.GetName()) || !strings.Contains(err.Error(), "side") {
		t.Errorf("a Pod that both select: %v, want a refusal that names both and the container", err)
	}
	free := pod(elsewhere, "free", app)
	if err := api.Create(t.Context(), free, client.DryRunAll); err != nil || len(free.Spec.Containers) != 2 {
		t.Errorf("a Pod that the wider one alone selects: %v, containers %v", err, testkit.ContainerNames(free.Spec.Containers))
	}

	// The narrower SidecarSet can still be changed, but not so that it clashes more.
	for _, tc := range []struct {
		patch   string
		refused bool
	}{
		{`{"spec": {"initContainers": [{"name": "prepare", "image": "example.com/prepare:v1"}]}}`, true},
		{`{"spec": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "` + elsewhere + `"}}}}`, true},
		{`{"metadata": {"labels": {"owner": "tenant"}}}`, false},
		{`{"spec": {"injectionStrategy": {"paused": true}}}`, false},
	} {
		err := api.Patch(t.Context(), squat, client.RawPatch(types.MergePatchType, []byte(tc.patch)))
		if apierrors.IsInvalid(err) != tc.refused || !tc.refused && err != nil {
			t.Errorf("%s: %v, want refused: %v", tc.patch, err, tc.refused)
		}
	}
}
