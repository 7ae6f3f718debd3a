package validation_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/fixtures/random"
	"github.com/sidecarset/operator/internal/validation"
)

// remedy matches the words that tell a user what to do: what the value has to be, or a verb.
var remedy = regexp.MustCompile(`\b(must|may not be more|supported values|set|use|remove|correct|name|rename|choose|change|say|give|add|write|begin|declare|mount|create|delete|make|describe|keep|move|ask)\b`)

// Whatever is refused, the message says what to do about it. "Required value" and
// `Invalid value: ""` alone do not.
func TestEveryErrorNamesARemedy(t *testing.T) {
	seen := map[string]*field.Error{}
	look := func(manifest map[string]any) {
		stored := fixtures.Stored(decoded(t, manifest))
		for _, err := range validation.Create(typed(t, stored), validation.Environment{Object: stored, Base: &metav1.ObjectMeta{}}) {
			seen[string(err.Type)+": "+err.Detail] = err
		}
	}
	g := random.New(9)
	for range 1000 {
		look(g.SidecarSet())
	}
	files, err := filepath.Glob("../../config/samples/invalid/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("samples: %v, %v", files, err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var manifest map[string]any
		if err := yaml.Unmarshal(data, &manifest); err != nil {
			t.Fatal(err)
		}
		if _, list := manifest["spec"].(map[string]any)["containers"].([]any); list && manifest["apiVersion"] == "apps.kruise.io/v1beta1" {
			look(manifest)
		}
	}
	if len(seen) < 35 {
		t.Errorf("%d kinds of errors: the test is about little", len(seen))
	}
	for _, key := range slices.Sorted(maps.Keys(seen)) {
		if !remedy.MatchString(seen[key].Detail) {
			t.Errorf("%v names no remedy", seen[key])
		}
	}
}
