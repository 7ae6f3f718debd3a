package docs

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
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
	if diff := gocmp.Diff(slices.Sorted(maps.Keys(exposed)), slices.Sorted(maps.Keys(documented))); diff != "" {
		t.Errorf("metrics (-exposed +documented):\n%s", diff)
	}
}

// The table of alerts has the alerts of the rules, in their order, and each leads to a heading.
func TestAlertsAreDocumented(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, For          string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "charts/sidecarset/rules/sidecarset.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	var want []string
	anchors := headings(read(t, "docs/troubleshooting.md"))
	for _, rule := range rules.Groups[0].Rules {
		page, anchor, _ := strings.Cut(rule.Annotations["runbook_url"], "#")
		if !strings.HasSuffix(page, "/docs/troubleshooting.md") || !anchors[anchor] {
			t.Errorf("the runbook of %s, %s#%s, does not exist", rule.Alert, page, anchor)
		}
		want = append(want, fmt.Sprintf("| [`%s`](troubleshooting.md#%s) | %s | %s |", rule.Alert, anchor, rule.Labels["severity"], cmp.Or(rule.For, "at once")))
	}
	_, section, _ := strings.Cut(read(t, "docs/metrics.md"), "\n## Alerts\n")
	got := regexp.MustCompile(`(?m)^\| \[.* \|.* \|.* \|`).FindAllString(section, -1)
	for i := range got { // without the last column
		got[i] = got[i][:strings.LastIndex(strings.TrimSuffix(got[i], " |"), " |")+2]
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("table of alerts (-want +got):\n%s", diff)
	}
}
