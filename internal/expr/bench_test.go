package expr_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sidecarset/operator/internal/expr"
)

// BenchmarkEval is the cost per expression and Pod.
func BenchmarkEval(b *testing.B) {
	e, err := expr.Parse("max(cpu*50%, 50m)", expr.CPU)
	if err != nil {
		b.Fatal(err)
	}
	value := resource.MustParse("1500m")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Eval(value); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHostile is the worst that MaxLength and the bound on exponents allow:
// Parse pays for the numbers, Eval for the variable.
func BenchmarkHostile(b *testing.B) {
	tests := map[string]string{
		"numbers":    strings.Repeat("1e-30/", 170) + "3",
		"fractions":  strings.Repeat("1/.7*", 200) + "1",
		"quantities": "cpu" + strings.Repeat("*1e30", 200),
		"nesting":    strings.Repeat("max(cpu,", 113) + "1" + strings.Repeat(")", 113),
	}
	for name, text := range tests {
		b.Run(name+"/Parse", func(b *testing.B) {
			for b.Loop() {
				_, _ = expr.Parse(text, expr.CPU)
			}
		})
		e, err := expr.Parse(text, expr.CPU)
		if err != nil {
			continue
		}
		b.Run(name+"/Eval", func(b *testing.B) {
			for b.Loop() {
				_, _ = e.Eval(resource.MustParse("1"))
			}
		})
	}
}
