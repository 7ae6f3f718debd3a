package docs

import (
	"cmp"
	"fmt"
	"regexp"
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
		want = append(want, fmt.Sprintf("| [`%s`](troubleshooting.md#%s) | %s | %s |", rule.Alert, anchor, rule.Labels["severity"], cmp.Or(rule.For, "at once")))
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
