package validation

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

func TestAnnotationEnforceIsTrueOrFalse(t *testing.T) {
	tests := map[string]string{
		"true": "", "false": "",
		"True": `metadata.annotations[sidecarset.io/enforce]: Unsupported value: "True": supported values: "true", "false"`,
		"":     `metadata.annotations[sidecarset.io/enforce]: Unsupported value: "": supported values: "true", "false"`,
	}
	for value, want := range tests {
		got := ""
		set := &appsv1beta1.SidecarSet{}
		set.Annotations = map[string]string{appsv1beta1.AnnotationEnforce: value}
		for _, err := range Create(set, Environment{}) {
			if err.Field == "metadata.annotations[sidecarset.io/enforce]" {
				got = err.Error()
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", value, diff)
		}
	}
}
