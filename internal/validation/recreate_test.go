package validation_test

import (
	"strings"
	"testing"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/recreate"
	"github.com/sidecarset/operator/internal/validation"
)

// Admission accepts what the leader understands, and nothing else.
func TestAnnotationRecreateIsAMode(t *testing.T) {
	for value, valid := range map[string]bool{
		"Never": true, "Outdated": true, "Uninjected": true, "All": true,
		"": false, "true": false, "outdated": false, "Outdated,Uninjected": false,
	} {
		set := &appsv1beta1.SidecarSet{}
		set.Annotations = map[string]string{appsv1beta1.AnnotationRecreate: value}
		if _, err := recreate.ModeOf(set.Annotations); err == nil && value != "" != valid {
			t.Errorf("the leader understands %q, and admission: %v", value, valid)
		}
		refusal := ""
		for _, err := range validation.Create(set, validation.Environment{}) {
			if err.Field == "metadata.annotations[sidecarset.io/recreate]" {
				refusal = err.Error()
			}
		}
		if (refusal == "") != valid || !valid && !strings.Contains(refusal, `"Uninjected"`) {
			t.Errorf("%q is refused with %q", value, refusal)
		}
	}
}
