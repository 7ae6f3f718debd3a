package inject_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
)

func TestCompileTakesRecordedHashes(t *testing.T) {
	set := log().Map()
	annotations := set["metadata"].(map[string]any)["annotations"].(map[string]any)
	annotations[appsv1beta1.AnnotationHash] = "recorded"
	p := fixtures.Compiled(t, set)
	if p.Hash != "recorded" || p.HashWithoutImage != annotations[appsv1beta1.AnnotationHashWithoutImage] {
		t.Errorf("hashes = %q, %q", p.Hash, p.HashWithoutImage)
	}
}

// An object that was stored while there was no webhook is injected as if the
// webhook had seen it, and has the hash that it will have then.
func TestCompileDefaultsASidecarSetStoredWithoutWebhooks(t *testing.T) {
	manifest := log().Manifest()
	text, _ := json.Marshal(manifest)
	got, want := fixtures.Compiled(t, manifest), fixtures.Compiled(t, log().Map())
	if got.Hash != want.Hash || got.HashWithoutImage != want.HashWithoutImage || got.Hash == "" {
		t.Errorf("hashes = %q, %q, want %q, %q", got.Hash, got.HashWithoutImage, want.Hash, want.HashWithoutImage)
	}
	pod := app().Obj()
	plain, _ := injected(t, fixtures.Input(t, pod, manifest), pod)
	stored, _ := injected(t, fixtures.Input(t, pod, log().Map()), pod)
	if diff := cmp.Diff(stored, plain); diff != "" {
		t.Errorf("Pod (-stored +plain):\n%s", diff)
	}
	if after, _ := json.Marshal(manifest); string(after) != string(text) {
		t.Errorf("Compile changed its argument: %s", after)
	}
}

func TestCompileSelectors(t *testing.T) {
	web := labels.Set{"app": "web"}
	selector := func(op string) map[string]any {
		return map[string]any{"matchExpressions": []any{map[string]any{"key": "app", "operator": op, "values": []any{"web"}}}}
	}
	tests := map[string]struct {
		set     *fixtures.SidecarSetBuilder
		matches bool
		field   string
		remedy  string
	}{
		"matchLabels":                     {set: log(), matches: true},
		"matchExpressions":                {set: log().Spec("selector", selector("In")), matches: true},
		"none is reported":                {set: log().Spec("selector", nil), field: "spec.selector", remedy: "matchLabels"},
		"an empty one is reported":        {set: log().Spec("selector", map[string]any{}), field: "spec.selector", remedy: "matchLabels"},
		"a bad operator is reported":      {set: log().Spec("selector", selector("Near")), field: "spec.selector", remedy: "Near"},
		"a bad namespaceSelector, too":    {set: log().Spec("namespaceSelector", selector("Near")), field: "spec.namespaceSelector", remedy: "Near"},
		"an empty namespaceSelector: all": {set: log().Spec("namespaceSelector", map[string]any{}), matches: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := inject.Compile(tc.set.Map())
			if p == nil {
				t.Fatalf("no compiled SidecarSet: %v", err)
			}
			if got := p.Selector.Matches(web) && p.NamespaceSelector.Matches(labels.Set{}); got != tc.matches {
				t.Errorf("matches = %v, want %v", got, tc.matches)
			}
			var field *inject.FieldError
			if errors.As(err, &field) != (tc.field != "") {
				t.Fatalf("error = %v", err)
			}
			if field != nil && (field.Field != tc.field || field.SidecarSet != "log" || !strings.Contains(err.Error(), tc.remedy)) {
				t.Errorf("error = %v, want one about %s that says %q", err, tc.field, tc.remedy)
			}
		})
	}
}

// Containers and volumes have no schema, so anything may be stored.
func TestCompileNamesTheFieldThatDoesNotDecode(t *testing.T) {
	container := func(member string, value any) map[string]any {
		return log().Container("bad", "bad:v1").With(member, value).Manifest()
	}
	tests := map[string]struct {
		object map[string]any
		field  string
	}{
		"a number for a string":   {container("image", 7), "spec.containers[1].image"},
		"a string for a number":   {container("ports", []any{map[string]any{"containerPort": 80}, map[string]any{"containerPort": "80"}}), "spec.containers[1].ports[1].containerPort"},
		"a quantity that is none": {container("resources", map[string]any{"limits": map[string]any{"cpu": "1", "memory": "much"}}), "spec.containers[1].resources.limits.memory"},
		"a string for a list":     {container("env", "A=1"), "spec.containers[1].env"},
		"a container that is null": {
			log().Spec("containers", []any{nil}).Manifest(), "spec.containers[0]",
		},
		"a volume that is null":            {log().Spec("volumes", []any{nil}).Manifest(), "spec.volumes[0]"},
		"a pull secret that is null":       {log().Spec("imagePullSecrets", []any{nil}).Manifest(), "spec.imagePullSecrets[0]"},
		"containers that are no list":      {log().Spec("containers", "all").Manifest(), "spec.containers"},
		"a spec that is no object":         {map[string]any{"metadata": map[string]any{"name": "log"}, "spec": 1}, "spec"},
		"no name":                          {map[string]any{}, "metadata.name"},
		"a nil object":                     {nil, "metadata.name"},
		"a volume of the wrong type":       {log().Spec("volumes", []any{map[string]any{"name": "v", "emptyDir": "x"}}).Manifest(), "spec.volumes[0].emptyDir"},
		"metadata of the wrong type":       {map[string]any{"metadata": "x"}, "metadata"},
		"selector values that are no list": {log().Spec("selector", map[string]any{"matchExpressions": []any{map[string]any{"values": 1}}}).Manifest(), "spec.selector.matchExpressions[0].values"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := inject.Compile(tc.object)
			var field *inject.FieldError
			if p != nil || !errors.As(err, &field) {
				t.Fatalf("compiled SidecarSet %v, error %v; want a FieldError alone", p, err)
			}
			if field.Field != tc.field {
				t.Errorf("field = %q, want %q: %v", field.Field, tc.field, err)
			}
		})
	}
}

func TestCompileListsSidecars(t *testing.T) {
	set := fixtures.SidecarSet("s").Container("z", "x:1").Container("b", "x:1").Native("m", "x:1").InitContainer("a", "x:1")
	if diff := cmp.Diff([]string{"b", "m", "z"}, fixtures.Compiled(t, set.Map()).SidecarList); diff != "" {
		t.Errorf("SidecarList (-want +got):\n%s", diff)
	}
	plain := fixtures.SidecarSet("s").InitContainer("a", "x:1")
	if got := fixtures.Compiled(t, plain.Map()).SidecarList; got == nil || len(got) != 0 {
		t.Errorf("SidecarList = %#v, want an empty list", got)
	}
}
