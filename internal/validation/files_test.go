package validation_test

import (
	"regexp"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/validation"
)

const allowAll = `{"rules":[{"allowedAnnotationKeyExprs":["."]}]}`

// remedy matches the words that tell a user what to do: what the value has to be, or a verb.
var remedy = regexp.MustCompile(`\b(must|may not be more|supported values|set|use|remove|correct|name|rename|choose|change|say|give|add|write|begin|declare|mount|create|delete|make|describe|keep|move|ask|divide)\b`)

// What the rules say about the SidecarSets in files: internal/fixtures/sidecarsets/README.md.
func TestSidecarSetsInFiles(t *testing.T) {
	fixtures.RunJudged(t, func(t *testing.T, c *fixtures.Judged) (said fixtures.Said) {
		set, err := fixtures.Hub(t, c.Manifest)
		if err != nil {
			return fixtures.Said{Refused: []string{err.Error()}}
		}
		var stored *hub.SidecarSet
		env := environment(t, c, set)
		for _, manifest := range c.Stored {
			if hub.NameOf(manifest) == set.Set.Name {
				stored = mustHub(t, manifest)
				env.Replaced = stored.Object
			}
		}
		errs := validation.Create(set.Set, env)
		if stored != nil {
			errs = validation.Update(set.Set, stored.Set, env)
			if validation.MayKeep(set.Set, stored.Set, stored.Object) {
				worse, kept := validation.Keep(errs, set.Object, stored.Set, environment(t, c, stored), nil)
				errs = worse
				for _, err := range kept {
					said.Warned = append(said.Warned, err.Error()+" (the stored SidecarSet has this problem already)")
				}
			}
		}
		for _, err := range errs {
			said.Refused = append(said.Refused, err.Error())
			if !remedy.MatchString(err.Detail) {
				t.Errorf("%v names no remedy", err)
			}
		}
		said.Warned = append(said.Warned, validation.Warnings(set.Set, env)...)
		return said
	})
}

// environment is what a SidecarSet is checked in, with the stored ones.
func environment(t *testing.T, c *fixtures.Judged, set *hub.SidecarSet) validation.Environment {
	t.Helper()
	env := validation.Environment{
		Object: set.Object, Recorded: true, Whitelist: validation.Whitelist{Content: allowAll},
		ExcludedNamespaces: []string{"kube-system", "sidecarset-system"},
	}
	if base := appsv1beta1.BaseOfCanary(set.Set.Annotations); base != "" {
		env.Base = &metav1.ObjectMeta{Name: base}
	}
	var others []*appsv1beta1.SidecarSet
	for _, manifest := range c.Stored {
		other := mustHub(t, manifest).Set
		if others = append(others, other); env.Base != nil && env.Base.Name == other.Name {
			env.Base = &other.ObjectMeta
		}
	}
	env.Stored, env.Conflicts = others, validation.FindConflicts(set.Set, others)
	return env
}

func mustHub(t *testing.T, manifest map[string]any) *hub.SidecarSet {
	t.Helper()
	set, err := fixtures.Hub(t, manifest)
	if err != nil {
		t.Fatal(err)
	}
	return set
}
