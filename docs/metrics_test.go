package docs

import (
	"cmp"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var metric = regexp.MustCompile(`"(sidecarset_[a-z_]+)"`)

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
	runbook := read(t, "docs/troubleshooting.md")
	anchors := headings(runbook)
	for _, rule := range rules.Groups[0].Rules {
		page, anchor, _ := strings.Cut(rule.Annotations["runbook_url"], "#")
		if !strings.HasSuffix(page, "/docs/troubleshooting.md") || !anchors[anchor] {
			t.Errorf("the runbook of %s, %s#%s, does not exist", rule.Alert, page, anchor)
		}
		if !strings.Contains(section(runbook, anchor), "`"+rule.Alert+"`") {
			t.Errorf("the section %s of troubleshooting.md does not name %s, which a pager shows", anchor, rule.Alert)
		}
		want = append(want, fmt.Sprintf("| [`%s`](troubleshooting.md#%s) | %s | %s |", rule.Alert, anchor, rule.Labels["severity"], cmp.Or(rule.For, "immediately")))
	}
	got := regexp.MustCompile(`(?m)^\| \[.* \|.* \|.* \|`).FindAllString(section(read(t, "docs/monitoring.md"), "alerts"), -1)
	for i := range got { // without the last column
		got[i] = got[i][:strings.LastIndex(strings.TrimSuffix(got[i], " |"), " |")+2]
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("table of alerts (-want +got):\n%s", diff)
	}
}

// section is the text below the heading with that anchor, up to the next heading.
func section(page, anchor string) string {
	found := heading.FindAllStringIndex(page, -1)
	for i, at := range found {
		if headings(page[at[0]:at[1]])[anchor] {
			end := len(page)
			if i+1 < len(found) {
				end = found[i+1][0]
			}
			return page[at[1]:end]
		}
	}
	return ""
}

// What alerts and panels select and group by are the operator's metrics, labels and values. Package prometheus of test/ecosystem
// evaluates them with such series.
func TestAlertsAndPanelsNameWhatTheCodeHas(t *testing.T) {
	var code strings.Builder
	for _, dir := range []string{"controllers", "webhooks", "certs", "internal", "cmd/operator"} {
		err := filepath.WalkDir(filepath.Join(module, dir), func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				code.WriteString(read(t, strings.TrimPrefix(path, module+"/")))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	table := read(t, "docs/reference/metrics.md")
	matcher := regexp.MustCompile(`\b(\w+)=~?"([^"]+)"`)
	for _, file := range []string{"charts/sidecarset/rules/sidecarset.yaml", "charts/sidecarset/dashboards/sidecarset.json"} {
		text := strings.ReplaceAll(read(t, file), `\"`, `"`)
		for _, name := range regexp.MustCompile(`\bsidecarset_[a-z_]+`).FindAllString(text, -1) {
			plain := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			if !strings.Contains(table, "`"+name+"`") && !strings.Contains(table, "`"+plain+"`") {
				t.Errorf("%s names the metric %s, which metrics.md does not have", file, name)
			}
		}
		names := regexp.MustCompile(`[a-z]+`).FindAllString(strings.Join(regexp.MustCompile(`by \([a-z, ]+\)`).FindAllString(text, -1), " "), -1)
		for _, found := range matcher.FindAllStringSubmatch(text, -1) {
			names = append(names, found[1])
			if !strings.Contains(found[2], "$") {
				names = append(names, strings.Split(found[2], "|")...)
			}
		}
		for _, name := range names {
			if !slices.Contains([]string{"by", "le", "name", "sidecarset-operator"}, name) && !strings.Contains(code.String(), `"`+name+`"`) {
				t.Errorf("%s selects or groups by %s, which is no label or value of the operator", file, name)
			}
		}
	}
}
