package integration

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/test/testkit"
)

// If a SidecarSet has a member with a wrong name, its author is warned: through the operator where
// the schema accepts every name, and by the API server elsewhere.
func TestTheAuthorOfAMisspelledMemberIsWarned(t *testing.T) {
	namespace := testkit.Namespace(t, api, nil)
	author := newUser(t, cluster, api, "mistaken", namespace+"/system:aggregate-to-edit")
	for spec, says := range map[string]string{
		"selector: {matchLabels: {app: web}}\ncontainers: [{name: mistakes, image: \"example.com/side:v1\", volumeMount: []}]\n": "spec.containers[0].volumeMount: is unknown to this API server, which drops it from Pods",
		"selector: {matchLabels: {app: web}}\nselectors: {}\ncontainers: [{name: mistakes, image: \"example.com/side:v1\"}]\n":   `unknown field "spec.selectors"`,
	} {
		set := newSidecarSet(t, namespace, spec+inNamespace)
		if err := author.Create(t.Context(), set, client.DryRunAll, client.FieldValidation("Warn")); err != nil {
			t.Fatal(err)
		}
		if told := author.told(); !strings.Contains(told, says) {
			t.Errorf("the author was warned of %q, want %q", told, says)
		}
	}
}
