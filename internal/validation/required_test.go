package validation_test

import (
	"fmt"
	"slices"
	"testing"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/validation"
)

func TestManyRequiredSidecarSetsAreWarnedOf(t *testing.T) {
	const want = "metadata.labels[sidecarset.io/required]: 21 SidecarSets have it, and API servers judge every Pod of the cluster by each of them; remove it from some"
	var stored []*appsv1beta1.SidecarSet
	for i := range 21 {
		set := fixtures.SidecarSet(fmt.Sprint("set-", i)).Obj()
		if i > 0 {
			stored = append(stored, set) // the first one is about to be created
		}
		set.Labels = map[string]string{appsv1beta1.LabelRequired: "true"}
	}
	set := fixtures.SidecarSet("set-0").Obj()
	set.Labels = map[string]string{appsv1beta1.LabelRequired: "true"}
	for count, warned := range map[int]bool{19: false, 20: true} {
		if got := validation.Warnings(set, validation.Environment{Stored: append(stored[:count:count], set)}); slices.Contains(got, want) != warned {
			t.Errorf("beside %d: warned of %q", count, got)
		}
	}
	set.Labels = nil
	if got := validation.Warnings(set, validation.Environment{Stored: stored}); slices.Contains(got, want) {
		t.Errorf("without the label: warned of %q", got)
	}
}
