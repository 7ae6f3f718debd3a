package validation

import (
	"fmt"
	"strconv"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// validateCall checks what the annotations say about calls of the Pod webhook
// that fail.
func validateCall(annotations map[string]string) field.ErrorList {
	var errs field.ErrorList
	if text, ok := annotations[appsv1beta1.AnnotationFailurePolicy]; ok {
		switch admissionregistrationv1.FailurePolicyType(text) {
		case admissionregistrationv1.Fail, admissionregistrationv1.Ignore:
		default:
			errs = append(errs, field.NotSupported(annotationPath(appsv1beta1.AnnotationFailurePolicy), text,
				[]admissionregistrationv1.FailurePolicyType{admissionregistrationv1.Fail, admissionregistrationv1.Ignore}))
		}
	}
	if text, ok := annotations[appsv1beta1.AnnotationTimeoutSeconds]; ok {
		if seconds, err := strconv.Atoi(text); err != nil || seconds < 1 || seconds > appsv1beta1.MaxTimeoutSeconds {
			errs = append(errs, field.Invalid(annotationPath(appsv1beta1.AnnotationTimeoutSeconds), text,
				fmt.Sprintf("must be a whole number of seconds from 1 to %d", appsv1beta1.MaxTimeoutSeconds)))
		}
	}
	return errs
}
