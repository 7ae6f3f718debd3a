package validation

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

func TestAnnotationsAboutCallsThatFail(t *testing.T) {
	tests := map[string]struct {
		key, value string
		want       []string
	}{
		"Fail":                      {appsv1beta1.AnnotationFailurePolicy, "Fail", nil},
		"Ignore":                    {appsv1beta1.AnnotationFailurePolicy, "Ignore", nil},
		"another policy":            {appsv1beta1.AnnotationFailurePolicy, "ignore", []string{`metadata.annotations[sidecarset.io/failure-policy]: Unsupported value: "ignore": supported values: "Fail", "Ignore"`}},
		"an empty policy":           {appsv1beta1.AnnotationFailurePolicy, "", []string{`metadata.annotations[sidecarset.io/failure-policy]: Unsupported value: "": supported values: "Fail", "Ignore"`}},
		"the shortest time":         {appsv1beta1.AnnotationTimeoutSeconds, "1", nil},
		"the longest time":          {appsv1beta1.AnnotationTimeoutSeconds, "30", nil},
		"no time":                   {appsv1beta1.AnnotationTimeoutSeconds, "0", []string{`metadata.annotations[sidecarset.io/timeout-seconds]: Invalid value: "0": must be a whole number of seconds from 1 to 30`}},
		"more than API servers let": {appsv1beta1.AnnotationTimeoutSeconds, "31", []string{`metadata.annotations[sidecarset.io/timeout-seconds]: Invalid value: "31": must be a whole number of seconds from 1 to 30`}},
		"a duration":                {appsv1beta1.AnnotationTimeoutSeconds, "5s", []string{`metadata.annotations[sidecarset.io/timeout-seconds]: Invalid value: "5s": must be a whole number of seconds from 1 to 30`}},
		"an annotation of others":   {"example.com/timeout-seconds", "x", nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, err := range validateCall(map[string]string{tc.key: tc.value}) {
				got = append(got, err.Error())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}
