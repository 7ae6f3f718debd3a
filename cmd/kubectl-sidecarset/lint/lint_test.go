package lint_test

import (
	"strings"
	"testing"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/lint"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/manifest"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/hub"
)

// What a cluster says about the SidecarSets in files, lint says in the same words, unless only API
// servers know it: internal/fixtures/sidecarsets/README.md.
func TestSidecarSetsInFiles(t *testing.T) {
	fixtures.RunJudgedCreations(t, func(t *testing.T, c *fixtures.Judged) (said fixtures.Said) {
		name := hub.NameOf(c.Manifest)
		var in lint.Input
		for _, document := range append(c.Stored, c.Manifest) {
			file, err := manifest.Parse("set.yaml", fixtures.YAML(t, document))
			if err != nil {
				t.Fatal(err)
			}
			in.SidecarSets = append(in.SidecarSets, file.Documents[0].Objects()...)
		}
		in.ExcludedNamespaces = []string{"kube-system", "sidecarset-system"}
		for _, f := range lint.Run(in) {
			switch line := f.Field + ": " + f.Message; {
			case f.SidecarSet != name, strings.Contains(line, "is unknown to this build of the plugin"): // a cluster may say it in other words
			case f.Severity == lint.Error:
				said.Refused = append(said.Refused, line)
			case f.Severity == lint.Warning:
				said.Warned = append(said.Warned, line)
			}
			if f.Line < 1 || f.Column < 1 {
				t.Errorf("%+v is at no place of the file", f)
			}
		}
		return said
	})
}
