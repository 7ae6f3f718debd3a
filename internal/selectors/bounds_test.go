package selectors

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/test/rounds"
)

// The demands of a long selector are computed once, not for each selector that it is compared
// with. Selectors that require other values of a label are compared without allocating memory.
func TestComparisonsWithALongSelectorAreCheap(t *testing.T) {
	rounds.NeedExactMemory(t)
	const n = 98_000
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprint("v", i)
	}
	long := func(operator metav1.LabelSelectorOperator) *metav1.LabelSelector {
		return &metav1.LabelSelector{
			MatchLabels:      map[string]string{"tier": "x"},
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: operator, Values: values}},
		}
	}
	in, notIn := DemandsOf(long(metav1.LabelSelectorOpIn)), DemandsOf(long(metav1.LabelSelectorOpNotIn))
	labelled := func(labels map[string]string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: labels}
	}
	tests := map[string]struct {
		of    *Demands
		other *metav1.LabelSelector
		want  bool
		most  float64 // allocations
	}{
		"another value":            {notIn, labelled(map[string]string{"tier": "y"}), false, 0},
		"a value that is left out": {notIn, labelled(map[string]string{"app": "v7"}), false, 0},
		"a value that is not":      {in, labelled(map[string]string{"app": "w"}), false, 0},
		"some value":               {in, labelled(map[string]string{"app": "v7"}), true, 100},
		"another label":            {notIn, labelled(map[string]string{"other": "x"}), true, 100},
		"an expression": {in, &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"w", "v9"}}}}, true, 100},
		"absence": {notIn, &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "app", Operator: metav1.LabelSelectorOpDoesNotExist}}}, true, 100},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.of.Overlap(tc.other); got != tc.want {
				t.Errorf("Overlap is %v", got)
			}
			if cost := testing.AllocsPerRun(10, func() { tc.of.Overlap(tc.other) }); cost > tc.most {
				t.Errorf("a comparison takes %.0f allocations, %.0f are allowed", cost, tc.most)
			}
		})
	}
}
