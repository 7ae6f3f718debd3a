package expr_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sidecarset/operator/internal/expr"
)

// variables are values at which every accepted expression is evaluated.
var variables = []resource.Quantity{
	{}, resource.MustParse("1"), resource.MustParse("101"), resource.MustParse("250m"), resource.MustParse("1Gi"),
	resource.MustParse("3n"), resource.MustParse("1e9"), resource.MustParse("9223372036854775807"), *resource.NewQuantity(-5, resource.BinarySI),
}

// No text makes the parser panic, and an accepted one evaluates without a panic to a
// quantity that is not negative, or to an error. Case has no meaning.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"max(cpu*50%, 50m)", "memory*30%", "memory+0.5", "--cpu/.5", "1e-1Ki", "min(1Mi,MEMORY)-(2", "50mm+1K*5E", "\x00µ", "1e30*1e30", "cpu/(1-1)", "(((", "max(1,2,3)", "cpu*max(cpu, 2)", "cpu/min(cpu, 0)*1e-99",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, variable := range []expr.Variable{expr.CPU, expr.Memory} {
			e, err := expr.Parse(text, variable)
			if stored, storedErr := expr.ParseStored(text, variable); storedErr == nil {
				for _, value := range variables {
					if got, err := stored.Eval(value); err == nil && got.Sign() < 0 {
						t.Fatalf("%q, stored, at %s = %s", text, value.String(), got.String())
					}
				}
			} else if err == nil {
				t.Fatalf("%q is accepted, and refused where it is stored: %v", text, storedErr)
			}
			if err != nil {
				continue
			}
			spelled := strings.NewReplacer("cpu", "CPU", "memory", "mEmOrY", "max", "MAX", "min", "MIN").Replace(text)
			respelled, err := expr.Parse(spelled, variable)
			if err != nil {
				t.Fatalf("%q is accepted, but not %q: %v", text, spelled, err)
			}
			for _, value := range variables {
				got, err := e.Eval(value)
				again, againErr := respelled.Eval(value)
				if (err == nil) != (againErr == nil) || got.Cmp(again) != 0 {
					t.Fatalf("%q = %s, %v, but %q = %s, %v", text, got.String(), err, spelled, again.String(), againErr)
				}
				if got.Sign() < 0 || variable == expr.Memory && got.MilliValue()%1000 != 0 && got.Value() < 1<<50 {
					t.Fatalf("%q at %s = %s", text, value.String(), got.String())
				}
			}
		}
	})
}
