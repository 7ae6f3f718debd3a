package docs

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
)

// reference/sidecarset.md has each field of the spec. The source is the CustomResourceDefinition, which kubectl explain reads too.
func TestSpecReferenceSaysWhatTheDefinitionSays(t *testing.T) {
	var definition struct {
		Spec struct {
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema schema }
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "config/crd/bases/apps.kruise.io_sidecarsets.yaml")), &definition); err != nil {
		t.Fatal(err)
	}
	specs := map[string]schema{}
	for _, version := range definition.Spec.Versions {
		specs[version.Name] = version.Schema.OpenAPIV3Schema.Properties["spec"]
	}
	newer, older := specFields(specs["v1beta1"], "", "containers", "initContainers"), specFields(specs["v1alpha1"], "", "containers", "initContainers")
	for field, row := range newer {
		if older[field] == row {
			delete(older, field) // what is left differs
		}
	}
	const head = "| Field | Type | Default | Meaning |\n|---|---|---|---|\n"
	for part, rows := range map[string]map[string]string{
		"spec":      newer,
		"container": specFields(*specs["v1beta1"].Properties["containers"].Items, ""),
		"v1alpha1":  older,
	} {
		text := head
		for _, field := range slices.Sorted(maps.Keys(rows)) {
			text += rows[field]
		}
		fixtures.CheckWritten(t, filepath.Join(module, "docs/reference/sidecarset.md"), part, text, "go test ./docs -run Reference -update")
	}
}

var (
	defaulted = regexp.MustCompile(`Default (.+?)\.(?: |$)|(\w+) \(default\)`)
	subject   = regexp.MustCompile(`^[a-z]\w* (?:is|are) (?:the )?`)
	markdown  = strings.NewReplacer("|", `\|`, "*", `\*`, "<", "&lt;")
)

// schema is the part of a structural schema that the page shows.
type schema struct {
	Type, Description    string
	Default              any
	Properties           map[string]schema
	Items                *schema
	AdditionalProperties *schema
	XIntOrString         bool `json:"x-kubernetes-int-or-string"`
}

// specFields are the rows of the table by field. Fields of the given names have no rows for their members.
func specFields(of schema, prefix string, closed ...string) map[string]string {
	rows := map[string]string{}
	for name, property := range of.Properties {
		description := strings.Join(strings.Fields(property.Description), " ")
		value, kind := "", property.Type
		if found := defaulted.FindStringSubmatch(description); found != nil {
			value = cmp.Or(found[1], found[2])
		}
		if property.Default != nil {
			value = fmt.Sprint(property.Default)
		}
		members, path := property, prefix+name
		switch {
		case property.XIntOrString:
			kind = "integer or percentage"
		case property.Items != nil && property.Items.Type == "object":
			kind, members = "list", *property.Items
			path += "[]"
		case property.Items != nil:
			kind = "list of strings"
		case property.AdditionalProperties != nil:
			kind = "map of strings"
		case property.Properties["matchLabels"].Type != "":
			kind, members = "label selector", schema{}
		case kind == "":
			kind = "list" // of which the schema knows nothing
		}
		rows[prefix+name] = fmt.Sprintf("| `%s` | %s | %s | %s |\n", prefix+name, kind, markdown.Replace(value), markdown.Replace(subject.ReplaceAllString(description, "")))
		if !slices.Contains(closed, name) {
			maps.Copy(rows, specFields(members, path+"."))
		}
	}
	return rows
}

// The manifests on the page have fields that exist.
func TestSpecReferenceHasManifests(t *testing.T) {
	all := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(read(t, "docs/reference/sidecarset.md"), -1)
	if len(all) == 0 {
		t.Error("the page has no manifest")
	}
	for _, manifest := range all {
		if err := yaml.UnmarshalStrict([]byte(manifest[1]), new(appsv1beta1.SidecarSet)); err != nil {
			t.Errorf("%v:\n%s", err, manifest[1])
		}
	}
}
