package validation_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/validation"
)

func TestAnnotationsWithFewValues(t *testing.T) {
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
		"enforcement":               {appsv1beta1.AnnotationEnforce, "true", nil},
		"no enforcement":            {appsv1beta1.AnnotationEnforce, "false", nil},
		"another case":              {appsv1beta1.AnnotationEnforce, "True", []string{`metadata.annotations[sidecarset.io/enforce]: Unsupported value: "True": supported values: "true", "false"`}},
		"an empty value":            {appsv1beta1.AnnotationEnforce, "", []string{`metadata.annotations[sidecarset.io/enforce]: Unsupported value: "": supported values: "true", "false"`}},
		"the app by default":        {appsv1beta1.AnnotationDefaultContainer, appsv1beta1.DefaultContainerApp, nil},
		"a container by default":    {appsv1beta1.AnnotationDefaultContainer, "app", []string{`metadata.annotations[sidecarset.io/default-container]: Unsupported value: "app": supported values: "App"`}},
		"an annotation of others":   {"example.com/timeout-seconds", "x", nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			set := &appsv1beta1.SidecarSet{}
			set.Annotations = map[string]string{tc.key: tc.value}
			var got []string
			for _, err := range validation.Create(set, validation.Environment{}) {
				if strings.HasPrefix(err.Field, "metadata.annotations[") {
					got = append(got, err.Error())
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnnotationMinReadySecondsIsANumberOfSeconds(t *testing.T) {
	for value, valid := range map[string]bool{
		"0": true, "1": true, "25": true,
		"": false, "one": false, "-1": false, "30s": false, "1.5": false, "99999999999": false,
	} {
		set := &appsv1beta1.SidecarSet{}
		set.Annotations = map[string]string{appsv1beta1.AnnotationMinReadySeconds: value}
		refused := false
		for _, err := range validation.Create(set, validation.Environment{}) {
			refused = refused || err.Field == "metadata.annotations[sidecarset.io/min-ready-seconds]"
		}
		if refused == valid {
			t.Errorf("%q is refused: %v", value, refused)
		}
	}
}
