package docs

import (
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var metric = regexp.MustCompile(`"(sidecarset_[a-z_]+)"`)

// The table in metrics.md has all metrics of the program, and no others.
func TestMetricsAreDocumented(t *testing.T) {
	exposed := map[string]bool{}
	collect := func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		path, _ = filepath.Rel(module, path)
		for _, match := range metric.FindAllStringSubmatch(read(t, path), -1) {
			exposed[match[1]] = true
		}
		return nil
	}
	for _, dir := range []string{"certs", "cmd", "controllers", "internal", "webhooks"} {
		if err := filepath.WalkDir(filepath.Join(module, dir), collect); err != nil {
			t.Fatal(err)
		}
	}

	documented := map[string]bool{}
	_, section, _ := strings.Cut(read(t, "docs/metrics.md"), "\n## All metrics\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		for _, match := range quoted.FindAllStringSubmatch(cells[min(1, len(cells)-1)], -1) {
			if len(cells) > 2 {
				documented[match[1]] = true
			}
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(exposed)), slices.Sorted(maps.Keys(documented))); diff != "" {
		t.Errorf("metrics (-exposed +documented):\n%s", diff)
	}
	_, alerts, _ := strings.Cut(read(t, "docs/metrics.md"), "\n## Alerts\n")
	for _, name := range regexp.MustCompile(`\bsidecarset_[a-z_]+`).FindAllString(alerts, -1) {
		if !exposed[name] {
			t.Errorf("an alert is on %s, which there is not", name)
		}
	}
}
