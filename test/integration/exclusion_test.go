package integration

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/test/testkit"
)

// T35: OpenKruise injects nothing in a namespace with the label control-plane, whatever its
// value. This operator excludes only the namespaces that its configuration names.
func TestNamespacesLabelledControlPlaneAreInjected(t *testing.T) {
	namespace := testkit.Namespace(t, api, map[string]string{"control-plane": "any-value"})
	set := createSidecarSet(t, namespace, `
selector: {matchLabels: {app: labelled}}
namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NS}}
containers: [{name: side, image: "example.com/side:v1"}]
`)
	awaitInjected(t, set, namespace, "app=labelled")
	p := pod(namespace, "p", "app=labelled")
	create(t, p)
	if diff := cmp.Diff([]string{"side", "app"}, testkit.ContainerNames(p.Spec.Containers)); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
}
