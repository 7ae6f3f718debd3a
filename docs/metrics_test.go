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
	anchors := headings(read(t, "docs/troubleshooting.md"))
	for _, rule := range rules.Groups[0].Rules {
		page, anchor, _ := strings.Cut(rule.Annotations["runbook_url"], "#")
		if !strings.HasSuffix(page, "/docs/troubleshooting.md") || !anchors[anchor] {
			t.Errorf("the runbook of %s, %s#%s, does not exist", rule.Alert, page, anchor)
		}
		want = append(want, fmt.Sprintf("| [`%s`](troubleshooting.md#%s) | %s | %s |", rule.Alert, anchor, rule.Labels["severity"], cmp.Or(rule.For, "at once")))
	}
	_, section, _ := strings.Cut(read(t, "docs/monitoring.md"), "\n## Alerts\n")
	got := regexp.MustCompile(`(?m)^\| \[.* \|.* \|.* \|`).FindAllString(section, -1)
	for i := range got { // without the last column
		got[i] = got[i][:strings.LastIndex(strings.TrimSuffix(got[i], " |"), " |")+2]
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("table of alerts (-want +got):\n%s", diff)
	}
}
