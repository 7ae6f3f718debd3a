package validation

import (
	"fmt"
	"math"
	"strconv"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// validateAnnotations refuses values of the operator's annotations that would have the same
// effect as no annotation, or that would stop every rollout.
func validateAnnotations(annotations map[string]string, metadata place) {
	choice := func(key string, supported ...string) {
		if text, ok := annotations[key]; ok {
			validateChoice(text, annotationOf(metadata, key), supported...)
		}
	}
	number := func(key string, least, most int64, problem string) {
		text, ok := annotations[key]
		if n, err := strconv.ParseInt(text, 10, 32); ok && (err != nil || n < least || n > most) {
			annotationOf(metadata, key).invalid(text, problem)
		}
	}
	choice(appsv1beta1.AnnotationFailurePolicy, string(admissionregistrationv1.Fail), string(admissionregistrationv1.Ignore))
	number(appsv1beta1.AnnotationTimeoutSeconds, 1, appsv1beta1.MaxTimeoutSeconds,
		fmt.Sprintf("must be a whole number of seconds from 1 to %d", appsv1beta1.MaxTimeoutSeconds))
	choice(appsv1beta1.AnnotationEnforce, "true", "false")
	choice(appsv1beta1.AnnotationDefaultContainer, appsv1beta1.DefaultContainerApp)
	number(appsv1beta1.AnnotationMinReadySeconds, 0, math.MaxInt32, `must be a whole number of seconds; write for example "30", or remove it`)
}

func annotationOf(metadata place, key string) place { return metadata.Child("annotations").Key(key) }
