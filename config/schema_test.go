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

// A type wrongly narrowed would refuse manifests that OpenKruise accepts.
func TestSchemaTypes(t *testing.T) {
	want := map[string]string{
		"spec": "object", "status": "object", "metadata": "object",
		"spec.containers": "array", "spec.containers[]": "object", "spec.initContainers[]": "object",
		"spec.volumes": "", "spec.updateStrategy.partition": "", "spec.updateStrategy.maxUnavailable": "",
		"spec.revisionHistoryLimit": "integer/int32", "spec.injectionStrategy.paused": "boolean",
		"status.observedGeneration": "integer/int64", "status.matchedPods": "integer/int32", "status.updatedReadyPods": "integer/int32",
		"status.collisionCount": "integer/int32", "status.latestRevision": "string",
		"spec.patchPodMetadata[].annotations": "object", "spec.patchPodMetadata[].annotations{}": "string",
	}
	for name, schema := range schemas(t) {
		t.Run(name, func(t *testing.T) {
			got := map[string]string{}
			walk("", schema, func(path string, node map[string]any) {
				if _, asked := want[path]; asked {
					got[path] = strings.TrimSuffix(text(node["type"])+"/"+text(node["format"]), "/")
				}
			})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("type by path (-want +got):\n%s", diff)
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

// A field without a description is one that kubectl explain says nothing about.
func TestEveryFieldIsDescribed(t *testing.T) {
	for name, schema := range schemas(t) {
		walk("", schema, func(path string, node map[string]any) {
			if path != "metadata" && !strings.HasSuffix(path, "[]") && !strings.HasSuffix(path, "{}") && text(node["description"]) == "" {
				t.Errorf("%s: %s has no description", name, path)
			}
		})
	}
}

func TestDefinition(t *testing.T) {
	definition := object(t, installed(t), "CustomResourceDefinition", "sidecarsets.apps.kruise.io")
	spec := definition["spec"].(map[string]any)
	versions := map[string]string{}
	for _, item := range spec["versions"].([]any) {
		version := item.(map[string]any)
		columns := []string{}
		for _, item := range version["additionalPrinterColumns"].([]any) {
			column := item.(map[string]any)
			columns = append(columns, fmt.Sprintf("%s %s %s", column["name"], column["type"], column["jsonPath"]))
			if priority, wide := column["priority"]; wide {
				columns[len(columns)-1] += fmt.Sprintf(" priority %v", priority)
			}
		}
		subresources := slices.Sorted(maps.Keys(version["subresources"].(map[string]any)))
		versions[text(version["name"])] = fmt.Sprintf("served=%v storage=%v deprecated=%v subresources=%v columns=%v",
			version["served"], version["storage"], version["deprecated"] != nil, subresources, strings.Join(columns, ", "))
	}
	// OpenKruise's columns, in its order, and ours among them.
	const columns = "columns=MATCHED integer .status.matchedPods, UPDATED integer .status.updatedPods, READY integer .status.readyPods, " +
		`IN-FORCE string .status.conditions[?(@.type=="Ready")].status, ROLLOUT string .status.conditions[?(@.type=="Progressing")].reason, AGE date .metadata.creationTimestamp, ` +
		"UNINJECTED integer .status.uninjectedPods priority 1, REVISION string .status.latestRevision priority 1, " +
		"STRATEGY string .spec.updateStrategy.type priority 1, PAUSED boolean .spec.injectionStrategy.paused priority 1, " +
		`DEGRADED string .status.conditions[?(@.type=="Degraded")].status priority 1`
	want := map[string]any{
		"group": "apps.kruise.io",
		"scope": "Cluster",
		"names": map[string]any{"kind": "SidecarSet", "listKind": "SidecarSetList", "plural": "sidecarsets", "singular": "sidecarset"},
		"versions": map[string]string{
			"v1alpha1": "served=true storage=false deprecated=false subresources=[status] " + columns,
			"v1beta1":  "served=true storage=true deprecated=false subresources=[status] " + columns,
		},
		"conversion": map[string]any{
			"strategy": "Webhook",
			"webhook": map[string]any{
				"conversionReviewVersions": []any{"v1"},
				"clientConfig": map[string]any{"service": map[string]any{
					"namespace": "sidecarset-system", "name": "sidecarset-webhook", "path": "/convert", "port": float64(443),
				}},
			},
		},
	}
	got := maps.Clone(spec)
	got["versions"] = versions
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("definition (-want +got):\n%s", diff)
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
