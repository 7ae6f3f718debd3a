package podtemplate_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/podtemplate"
)

// question is about a SidecarSet with these members of its spec. test/integration asks a real
// API server.
func question(t *testing.T, spec string) podtemplate.Question {
	t.Helper()
	text, err := yaml.YAMLToJSON([]byte("apiVersion: apps.kruise.io/v1beta1\nkind: SidecarSet\nmetadata: {name: a}\nspec: {" + spec + "}"))
	if err != nil {
		t.Fatal(err)
	}
	object, err := hub.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	set, err := object.Hub()
	if err != nil {
		t.Fatal(err)
	}
	return podtemplate.New(set)
}

// template is the spec of the Pod that is asked about.
func template(t *testing.T, q podtemplate.Question) map[string]any {
	t.Helper()
	var body struct{ Template struct{ Spec map[string]any } }
	if err := json.Unmarshal(q.Body(), &body); err != nil {
		t.Fatal(err)
	}
	return body.Template.Spec
}

// A container of the question has every member but those that only SidecarSets know.
func TestOnlyMembersOfPodsAreAsked(t *testing.T) {
	ofPods := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[corev1.Container]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		ofPods[name] = true
	}
	var members []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[appsv1beta1.SidecarContainer]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && !ofPods[name] {
			members = append(members, name)
		}
	}
	if len(members) < 6 {
		t.Fatalf("the members of a sidecar are %q", members)
	}
	spec := `initContainers: [{name: a, novel: 1, podInjectPolicy: x, upgradeStrategy: {}, shareVolumePolicy: {}, shareVolumeDevicePolicy: {}, transferEnv: [], resourcesPolicy: {}}]`
	asked := template(t, question(t, spec))["initContainers"].([]any)[0].(map[string]any)
	if diff := cmp.Diff([]string{"name", "novel"}, slices.Sorted(maps.Keys(asked))); diff != "" {
		t.Errorf("members (-want +got):\n%s", diff)
	}
	for _, member := range members {
		if !strings.Contains(spec, " "+member+":") {
			t.Errorf("the test lacks the member %s", member)
		}
	}
}

// Changes of other members are no question.
func TestEqualQuestions(t *testing.T) {
	const containers = `containers: [{name: a, image: b}]`
	first := question(t, containers)
	for spec, want := range map[string]bool{
		containers: true,
		containers + `, injectionStrategy: {paused: true}`:                                         true,
		`containers: [{name: a, image: b, transferEnv: [{}]}]`:                                     true,
		containers + `, volumes: [{name: v}]`:                                                      false,
		containers + `, imagePullSecrets: [{name: v}]`:                                             false,
		`containers: [{name: a, image: b, novel: 1}]`:                                              false,
		`containers: [{name: a, image: b, securityContext: {windowsOptions: {runAsUserName: c}}}]`: false,
		containers + `, initContainers: [{name: i, image: b}]`:                                     false,
		containers + `, patchPodMetadata: [{annotations: {a: b}}]`:                                 true,
	} {
		if got := question(t, spec).Equal(first); got != want {
			t.Errorf("%s: equal is %v, want %v", spec, got, want)
		}
	}
}

// The decoder of an API server names the first hundred unknown members, and its long warnings
// are cut. Zeros, empty values and other spellings are no loss.
func TestMembersThatAreDropped(t *testing.T) {
	q := question(t, `containers: [{name: a, image: b, stdin: false, args: [], resources: {limits: {cpu: "0.50"}, requests: {}}, dim: {x: y}, lit: {}}], volumes: [{name: v, emptyDir: {}}]`)
	const answer = `{"template":{"spec":{"containers":[{"name":"a","image":"b","resources":{"limits":{"cpu":"500m"}}}],"volumes":[{"name":"v","emptyDir":{}}]}}}`
	read := func(warnings ...string) []string {
		v, err := q.Read([]byte(answer), warnings, nil)
		if err != nil || len(v.Refused) > 0 {
			t.Fatalf("got %v, %v", v, err)
		}
		return v.Warnings
	}
	const off = "spec.containers[0].dim: is dropped from Pods by this API server"
	for _, tc := range []struct {
		warnings, want []string
	}{
		{nil, []string{off + ", because the feature that has it is switched off; remove it, or have the feature gate switched on"}},
		{[]string{`unknown field "template.spec.containers[0].dim"`, `unknown field "template.spec.containers[0].lit"`}, []string{
			"spec.containers[0].dim: is unknown to this API server, which drops it from Pods; correct or remove it",
			"spec.containers[0].lit: is unknown to this API server, which drops it from Pods; correct or remove it"}},
		{[]string{`unknown field "template.spec.containers[0].d`}, []string{off + "; correct or remove it"}},
		{[]string{"would violate PodSecurity", "template.spec.containers[0].env[1]: hides template.spec.containers[0].env[0]", "template.spec.hostUsers: x"}, []string{
			"spec.containers[0].env[1]: hides spec.containers[0].env[0]", off + ", because the feature that has it is switched off; remove it, or have the feature gate switched on"}},
	} {
		if diff := cmp.Diff(tc.want, read(tc.warnings...)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tc.warnings, diff)
		}
	}
	var hundred []string
	for i := range 100 {
		hundred = append(hundred, fmt.Sprintf(`unknown field "template.spec.volumes[0].m%02d"`, i))
	}
	if lines := read(hundred...); lines[0] != off+"; correct or remove it" || lines[len(lines)-1] != "spec: the API server drops 91 more members of containers and volumes from Pods; correct or remove them" {
		t.Errorf("got %q", lines)
	}
}
