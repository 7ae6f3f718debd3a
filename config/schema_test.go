package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// additions are the parts of status that OpenKruise's API does not have. They
// may carry whatever keywords they like.
var additions = []string{"status.conditions", "status.uninjectedPods", "status.uninjected", "status.blockedPods", "status.notRunningPods", "status.revisions"}

// The schema decides which manifests apply, what the API server adds to them and
// how it merges them. These are all the keywords with such an effect that it may
// hold, in both versions; one more in a library's types, or one less, fails here.
func TestSchemaHoldsOnlyTheseKeywords(t *testing.T) {
	container := map[string]string{
		"":                                      "preserve",
		".resourcesPolicy":                      "required=resourcesExpr,targetContainersMode",
		".resourcesPolicy.targetContainersMode": "enum=sum,max",
		".resourcesPolicy.targetContainersNameRegex":      "default=.*",
		".transferEnv[].sourceContainerNameFrom.fieldRef": "required=fieldPath map=atomic",
	}
	want := map[string]string{
		"spec.imagePullSecrets[]":                               "map=atomic",
		"spec.imagePullSecrets[].name":                          "default=",
		"spec.injectionStrategy.revision.policy":                "default=Always enum=Always,Partial",
		"spec.updateStrategy.maxUnavailable":                    "int-or-string",
		"spec.updateStrategy.partition":                         "int-or-string",
		"spec.updateStrategy.priorityStrategy.orderPriority[]":  "required=orderedKey",
		"spec.updateStrategy.priorityStrategy.weightPriority[]": "required=matchSelector,weight",
		"spec.updateStrategy.scatterStrategy[]":                 "required=key,value",
		"spec.volumes":                                          "preserve",
		"status":                                                "required=matchedPods,readyPods,updatedPods",
	}
	for _, list := range []string{"spec.containers[]", "spec.initContainers[]"} {
		for path, keywords := range container {
			want[list+path] = keywords
		}
	}
	for _, selector := range []string{
		"spec.selector", "spec.namespaceSelector", "spec.updateStrategy.selector",
		"spec.updateStrategy.priorityStrategy.weightPriority[].matchSelector",
	} {
		want[selector] = "map=atomic"
		want[selector+".matchExpressions[]"] = "required=key,operator"
	}

	for name, schema := range schemas(t) {
		t.Run(name, func(t *testing.T) {
			got := map[string]string{}
			walk("", schema, func(path string, node map[string]any) {
				if keywords := effects(t, path, node); keywords != "" && !isAddition(path) {
					got[path] = keywords
				}
			})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("keywords by path (-want +got):\n%s", diff)
			}
		})
	}
}

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

// effects states the keywords of a node that do more than describe it. A keyword
// that it does not know fails the test.
func effects(t *testing.T, path string, node map[string]any) string {
	t.Helper()
	var found []string
	for _, keyword := range slices.Sorted(maps.Keys(node)) {
		value := node[keyword]
		switch keyword {
		case "type", "format", "description", "properties", "items", "additionalProperties":
		case "default":
			found = append(found, "default="+text(value))
		case "enum", "required":
			found = append(found, keyword+"="+joined(value))
		case "x-kubernetes-map-type":
			found = append(found, "map="+text(value))
		case "x-kubernetes-preserve-unknown-fields":
			found = append(found, "preserve")
		case "x-kubernetes-int-or-string":
			found = append(found, "int-or-string")
		case "anyOf": // goes with int-or-string
			if node["x-kubernetes-int-or-string"] != true {
				found = append(found, keyword)
			}
		default:
			found = append(found, fmt.Sprintf("%s=%v", keyword, value))
		}
	}
	return strings.Join(found, " ")
}

func isAddition(path string) bool {
	return slices.ContainsFunc(additions, func(addition string) bool { return strings.HasPrefix(path, addition) })
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

func joined(value any) string {
	var parts []string
	for _, part := range value.([]any) {
		parts = append(parts, text(part))
	}
	return strings.Join(parts, ",")
}

func text(value any) string {
	s, _ := value.(string)
	return s
}
