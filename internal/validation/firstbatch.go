package validation

import (
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// validateFirstBatch refuses a value that would stop every rollout.
func validateFirstBatch(annotations map[string]string) field.ErrorList {
	text, ok := annotations[appsv1beta1.AnnotationFirstBatch]
	if !ok {
		return nil
	}
	if n, err := strconv.ParseInt(text, 10, 32); err != nil || n < 0 {
		return field.ErrorList{field.Invalid(annotationPath(appsv1beta1.AnnotationFirstBatch), text, `must be a whole number of Pods; write for example "1", or remove it`)}
	}
	return nil
}
