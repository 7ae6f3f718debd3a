package docs

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"github.com/sidecarset/operator/internal/fixtures"
)

// The chart's README has a table of its values. The source is values.yaml with its comments.
func TestChartReferenceSaysWhatTheValuesSay(t *testing.T) {
	values, err := yaml.Parse(read(t, "charts/sidecarset/values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	rows := "| Value | Default | Meaning |\n|---|---|---|\n"
	var add func(prefix string, node *yaml.Node)
	add = func(prefix string, node *yaml.Node) {
		for i := 0; i < len(node.Content); i += 2 {
			key, value := node.Content[i], node.Content[i+1]
			name, comment := prefix+key.Value, prose(key.HeadComment)
			// Values without comments of their own are examples: a user sets all of them at once.
			nested := value.Kind == yaml.MappingNode && len(value.Content) > 0 && value.Content[0].HeadComment != ""
			if nested {
				if comment != "" {
					rows += fmt.Sprintf("| `%s` | | %s |\n", name, comment)
				}
				add(name+".", value)
				continue
			}
			if comment == "" {
				t.Errorf("the value %s of the chart has no comment", name)
			}
			rows += fmt.Sprintf("| `%s` | `%s` | %s |\n", name, flow(t, value), comment)
		}
	}
	add("", values.YNode())
	fixtures.CheckWritten(t, filepath.Join(module, "charts/sidecarset/README.md"), "values", rows, "go test ./docs -run Reference -update")
}

var commentMark = regexp.MustCompile(`(?m)^# ?`)

// prose is the last paragraph of a comment, in one line of a table.
func prose(comment string) string {
	text := commentMark.ReplaceAllString(comment, "")
	return strings.ReplaceAll(strings.Join(strings.Fields(text[strings.LastIndex(text, "\n\n")+1:]), " "), "|", `\|`)
}

// flow is a value in one line.
func flow(t *testing.T, node *yaml.Node) string {
	t.Helper()
	var value any
	if err := node.Decode(&value); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
