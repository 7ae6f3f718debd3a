package config

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// The fields of the two versions are the same, but for the two that conversion
// translates. Shared descriptions are the same as well.
func TestVersionsDifferInTwoFields(t *testing.T) {
	fields := func(version string) map[string]string {
		found := map[string]string{}
		walk("", schemas(t)[version], func(path string, node map[string]any) {
			found[path] = text(node["type"]) + ": " + text(node["description"])
		})
		return found
	}
	older, newer := fields("v1alpha1"), fields("v1beta1")
	if got, want := missing(older, newer), []string{"spec.namespace"}; !slices.Equal(got, want) {
		t.Errorf("only in v1alpha1: %v, want %v", got, want)
	}
	if got, want := missing(newer, older), []string{"spec.customVersion"}; !slices.Equal(got, want) {
		t.Errorf("only in v1beta1: %v, want %v", got, want)
	}
	for _, path := range []string{"", "spec.namespaceSelector"} { // these say how v1alpha1 differs
		delete(older, path)
	}
	for path, field := range older {
		if other, ok := newer[path]; ok && other != field {
			t.Errorf("%s differs:\nv1alpha1 %s\nv1beta1  %s", path, field, other)
		}
	}
}

// schemas returns the schema of each version of the installed CRD.
func schemas(t *testing.T) map[string]map[string]any {
	t.Helper()
	definition := object(t, installed(t), "CustomResourceDefinition", "sidecarsets.apps.kruise.io")
	found := map[string]map[string]any{}
	for _, item := range definition["spec"].(map[string]any)["versions"].([]any) {
		version := item.(map[string]any)
		found[text(version["name"])] = version["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)
	}
	if len(found) != 2 {
		t.Fatalf("versions %v, want two", slices.Sorted(maps.Keys(found)))
	}
	return found
}

// walk visits every schema node: a member as a.b, an element as a[], a value of
// a map as a{}.
func walk(path string, node map[string]any, visit func(path string, node map[string]any)) {
	visit(path, node)
	properties, _ := node["properties"].(map[string]any)
	for name, property := range properties {
		walk(strings.TrimPrefix(path+"."+name, "."), property.(map[string]any), visit)
	}
	if items, ok := node["items"].(map[string]any); ok {
		walk(path+"[]", items, visit)
	}
	if values, ok := node["additionalProperties"].(map[string]any); ok {
		walk(path+"{}", values, visit)
	}
}

// missing lists the paths of a that b lacks, in order.
func missing(a, b map[string]string) []string {
	var found []string
	for _, path := range slices.Sorted(maps.Keys(a)) {
		if _, ok := b[path]; !ok {
			found = append(found, path)
		}
	}
	return found
}

func text(value any) string {
	s, _ := value.(string)
	return s
}
