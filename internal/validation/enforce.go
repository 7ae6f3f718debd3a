package validation

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// validateEnforce refuses a value that reads as if it switched something on, and
// does not.
func validateEnforce(annotations map[string]string) field.ErrorList {
	switch text, ok := annotations[appsv1beta1.AnnotationEnforce]; {
	case !ok, text == "true", text == "false":
		return nil
	default:
		return field.ErrorList{field.NotSupported(annotationPath(appsv1beta1.AnnotationEnforce), text, []string{"true", "false"})}
	}
}
