package lint_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/lint"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/manifest"
)

// needCluster are the broken samples that are broken only beside what a cluster has.
var needCluster = []string{"annotation-not-allowed.yaml", "canary-without-base.yaml", "revision-that-is-not-recorded.yaml"}

var wanted = regexp.MustCompile(`(?m)^# want: (.+)$`)

// What a cluster refuses, lint reports as an error, in the same words and at a line of the file,
// unless only API servers know the rule.
func TestBrokenSamplesAreErrors(t *testing.T) {
	files, err := filepath.Glob("../../../config/samples/invalid/*.yaml")
	if err != nil || len(files) < 20 {
		t.Fatalf("samples: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			read, err := manifest.Read([]string{file}, false, nil)
			if err != nil {
				t.Fatal(err)
			}
			severity := lint.Error
			if slices.Contains(needCluster, filepath.Base(file)) {
				severity = lint.Advice
			}
			if strings.Contains(string(text), "\n# Found by an API server only.\n") {
				return
			}
			findings, err := lint.Run(lint.Input{SidecarSets: read[0].Documents[0].Objects()})
			if err != nil {
				t.Fatal(err)
			}
			var said []string
			for _, f := range findings {
				if f.Severity == severity {
					said = append(said, f.Field+": "+f.Message)
				}
				if f.Line < 3 || f.Line > strings.Count(string(text), "\n") || f.Column < 1 {
					t.Errorf("%+v is at no place of the file", f)
				}
			}
			all := strings.Join(said, "\n")
			if severity == lint.Advice {
				if !strings.Contains(all, "is not in the files") {
					t.Errorf("it says %s", all)
				}
				return
			}
			for _, want := range wanted.FindAllStringSubmatch(string(text), -1) {
				if !strings.Contains(all, want[1]) {
					t.Errorf("it says %q, want %q", all, want[1])
				}
			}
		})
	}
}
