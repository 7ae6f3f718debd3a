package validation_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/validation"
)

func TestTheSizeOfASpecIsBounded(t *testing.T) {
	of := func(kib int) *fixtures.SidecarSetBuilder {
		return fixtures.SidecarSet("long").Select("app", "web").Container("side", "side:v1").Env("LONG", strings.Repeat("x", kib<<10))
	}
	tests := map[string]struct {
		set, old *fixtures.SidecarSetBuilder
		refused  bool
	}{
		"200 KiB":                                     {set: of(200)},
		"300 KiB":                                     {set: of(300), refused: true},
		"200 KiB that become 300":                     {set: of(300), old: of(200), refused: true},
		"300 KiB that were stored":                    {set: of(300), old: of(300)},
		"300 KiB that were stored become 299":         {set: of(299), old: of(300)},
		"300 KiB that were stored become 301":         {set: of(301), old: of(300), refused: true},
		"300 KiB that were stored, another image too": {set: of(300).With("image", "side:v2"), old: of(300)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			env := validation.Environment{Object: tc.set.Map()}
			var errs field.ErrorList
			if tc.old == nil {
				errs = validation.Create(tc.set.Obj(), env)
			} else {
				env.Replaced = tc.old.Map()
				errs = validation.Update(tc.set.Obj(), tc.old.Obj(), env)
			}
			if refused := len(errs) > 0; refused != tc.refused {
				t.Fatalf("problems are %v", errs)
			}
			if tc.refused && (errs[0].Field != "spec" || !strings.Contains(errs[0].Error(), "ConfigMaps")) {
				t.Errorf("the problem is %v", errs[0])
			}
		})
	}
}
