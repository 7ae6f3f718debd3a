package docs

import (
	"slices"
	"strings"
	"testing"

	"github.com/sidecarset/operator/test/manifests"
)

// What the installation leaves outside of its namespace, "How to go back" deletes.
func TestTheGuideToGoBackDeletesInstalledObjects(t *testing.T) {
	_, section, _ := strings.Cut(read(t, "docs/migration.md"), "\n## How to go back\n")
	for _, layout := range []string{"default", "overlays/hardened"} {
		text, err := manifests.Build("../config/" + layout)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq("\n"+text, "\n---\n") {
			kind, namespace := member(document, "\nkind: "), member(document, "\n  namespace: ")
			switch {
			case kind == "CustomResourceDefinition": // is to stay
			case namespace == "sidecarset-system": // goes with it
			case kind == "Namespace" && strings.Contains(section, "kubectl delete namespace sidecarset-system"):
			case namespace == "" && deletes(section, "kubectl delete ", kind):
			case namespace != "" && deletes(section, "kubectl -n "+namespace+" delete ", kind):
			default:
				t.Errorf("%s: %s %s in namespace %q is left", layout, kind, member(document, "\n  name: "), namespace)
			}
		}
	}
}

// member is the first value of a member with that indentation.
func member(document, key string) string {
	_, rest, found := strings.Cut("\n"+document, key)
	if !found {
		return ""
	}
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// deletes says whether a command deletes our objects of a kind.
func deletes(section, command, kind string) bool {
	plural := strings.ToLower(kind) + "s"
	if strings.HasSuffix(kind, "y") {
		plural = strings.TrimSuffix(strings.ToLower(kind), "y") + "ies"
	}
	for line := range strings.Lines(section) {
		kinds, ours := strings.CutPrefix(strings.TrimSpace(line), command)
		if ours && strings.Contains(line, "-l app.kubernetes.io/part-of=sidecarset") &&
			slices.Contains(strings.Split(strings.Fields(kinds)[0], ","), plural) {
			return true
		}
	}
	return false
}
