package validation

import (
	"testing"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

func TestAnnotationFirstBatchIsANumberOfPods(t *testing.T) {
	for value, valid := range map[string]bool{
		"0": true, "1": true, "25": true,
		"": false, "one": false, "-1": false, "10%": false, "1.5": false, "99999999999": false,
	} {
		set := &appsv1beta1.SidecarSet{}
		set.Annotations = map[string]string{appsv1beta1.AnnotationFirstBatch: value}
		refused := false
		for _, err := range Create(set, Environment{}) {
			refused = refused || err.Field == "metadata.annotations[sidecarset.io/first-batch]"
		}
		if refused == valid {
			t.Errorf("%q is refused: %v", value, refused)
		}
	}
}
