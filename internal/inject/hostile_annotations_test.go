package inject_test

import (
	"fmt"
	"strings"
	"testing"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
)

// Up to 3 MiB of annotations reach admission. Records that no operator writes
// are replaced as garbage is, and the Pod is created.
func TestComputeReplacesRecordsBeyondTheBounds(t *testing.T) {
	var hashes, names strings.Builder
	for i := range 150_000 {
		fmt.Fprintf(&hashes, `,"%x":""`, i)
		fmt.Fprintf(&names, ",%x", i)
	}
	pod := app().Annotation(appsv1beta1.AnnotationHash, "{"+hashes.String()[1:]+"}").
		Annotation(appsv1beta1.AnnotationHashWithoutImage, "{"+hashes.String()[1:]+"}").
		Annotation(appsv1beta1.AnnotationInjectedList, names.String()[1:]).
		Annotation(appsv1beta1.AnnotationRevisionChoice, "{"+hashes.String()[1:]+"}").
		Annotation(appsv1beta1.AnnotationWorkingHotUpgradeContainer, "{"+hashes.String()[1:]+"}").Obj()
	got, _ := injected(t, fixtures.Input(t, pod, log().Map()), pod)
	annotations := got["metadata"].(map[string]any)["annotations"].(map[string]any)
	for _, key := range []string{appsv1beta1.AnnotationHash, appsv1beta1.AnnotationHashWithoutImage} {
		if names := recorded(t, annotations[key].(string)); len(names) != 1 || names[0] != "log" {
			t.Errorf("%s names %v, want log alone", key, names)
		}
	}
	if list := annotations[appsv1beta1.AnnotationInjectedList]; list != "log" {
		t.Errorf("the injected list is %.40q, want log alone", list)
	}
}
