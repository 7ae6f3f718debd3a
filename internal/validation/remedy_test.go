package validation_test

import (
	"regexp"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/fixtures/random"
	"github.com/sidecarset/operator/internal/validation"
)

// remedy matches the words that tell a user what to do: what the value has to be, or a verb.
var remedy = regexp.MustCompile(`\b(must|may not be more|supported values|set|use|remove|correct|name|rename|choose|change|say|give|add|write|begin|declare|mount|create|delete|make|describe|keep|move|ask|divide)\b`)

// Whatever is refused, the message says what to do about it. "Required value" and
// `Invalid value: ""` alone do not. TestSidecarSetsInFiles looks for remedies too.
func TestEveryErrorNamesARemedy(t *testing.T) {
	seen := map[string]bool{}
	g := random.New(9)
	for range 1000 {
		stored := fixtures.Stored(decoded(t, g.SidecarSet()))
		for _, err := range validation.Create(typed(t, stored), validation.Environment{Object: stored, Base: &metav1.ObjectMeta{}}) {
			if seen[err.Detail] = true; !remedy.MatchString(err.Detail) {
				t.Errorf("%v names no remedy", err)
			}
		}
	}
	if len(seen) < 25 {
		t.Errorf("%d kinds of errors: the test is about little", len(seen))
	}
}
