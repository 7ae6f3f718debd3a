package docs

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var metric = regexp.MustCompile(`"(sidecarset_[a-z_]*)"`)

// The table in metrics.md has all that there are, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	exposed := map[string]bool{}
	for _, dir := range []string{"certs", "controllers", "webhooks"} {
		sources, err := filepath.Glob(filepath.Join(module, dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, source := range sources {
			if strings.HasSuffix(source, "_test.go") {
				continue
			}
			for _, match := range metric.FindAllStringSubmatch(read(t, source), -1) {
				exposed[match[1]] = true
			}
		}
	}
	// The counters of a SidecarSet have names that are put together.
	delete(exposed, "sidecarset_")
	for _, state := range []string{"matched", "updated", "ready", "uninjected"} {
		exposed["sidecarset_"+state+"_pods"] = true
	}

	documented := map[string]bool{}
	_, section, _ := strings.Cut(read(t, "metrics.md"), "\n## All metrics\n")
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
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
