package validation

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// The rules of the reference's resourcesPolicy, with T21 and T22 repaired.
func TestResourcesPolicy(t *testing.T) {
	tests := map[string]struct {
		container string
		want      []string // "path: Type: what the detail begins with"
	}{
		"no policy":                 {`{resources: {limits: {cpu: 1}}}`, nil},
		"the four expressions":      {`{resourcesPolicy: {targetContainersNameRegex: ^app, resourcesExpr: {limits: {cpu: "max(cpu*50%, 50m)", memory: 200Mi}, requests: {cpu: cpu/2, memory: memory}}}}`, nil},
		"claims beside it":          {`{resources: {claims: [{name: gpu}]}, resourcesPolicy: {targetContainersNameRegex: ., resourcesExpr: {limits: {}}}}`, nil},
		"empty limits":              {`{resourcesPolicy: {targetContainersNameRegex: ., resourcesExpr: {limits: {}}}}`, nil},
		"T21: what may be negative": {`{resourcesPolicy: {targetContainersNameRegex: ., resourcesExpr: {limits: {cpu: cpu-2, memory: memory-100Mi}}}}`, nil},
		"T21: capitals":             {`{resourcesPolicy: {targetContainersNameRegex: ., resourcesExpr: {limits: {memory: MEMORY*50%}}}}`, nil},
		"limits beside it, and nothing else is reported": {`{resources: {limits: {cpu: 1}}, resourcesPolicy: {}}`, []string{"containers[0].resourcesPolicy: Invalid: cannot be combined with resources.limits and resources.requests"}},
		"requests beside it":                             {`{resources: {requests: {example.com/x: 1}}, resourcesPolicy: {}}`, []string{"containers[0].resourcesPolicy: Invalid: cannot be combined"}},
		"neither regex nor expressions": {`{resourcesPolicy: {}}`, []string{
			"containers[0].resourcesPolicy.targetContainersNameRegex: Required: choose the target containers by name",
			"containers[0].resourcesPolicy.resourcesExpr: Invalid: at least one of limits and requests must be set"}},
		"what is no regular expression": {`{resourcesPolicy: {targetContainersNameRegex: "a(?=b)", resourcesExpr: {limits: {}}}}`, []string{
			"containers[0].resourcesPolicy.targetContainersNameRegex: Invalid: invalid regular expression: error parsing regexp"}},
		"every expression that cannot work": {`{resourcesPolicy: {targetContainersNameRegex: ., resourcesExpr: {limits: {cpu: cpu*cpu, memory: cpu}, requests: {cpu: 50mm, memory: memory/0}}}}`, []string{
			"containers[0].resourcesPolicy.resourcesExpr.limits.cpu: Invalid: invalid expression: column 4: multiplication of two quantities",
			`containers[0].resourcesPolicy.resourcesExpr.limits.memory: Invalid: invalid expression: column 1: "cpu" cannot be used here; use memory`,
			`containers[0].resourcesPolicy.resourcesExpr.requests.cpu: Invalid: invalid expression: column 1: "50mm" is neither`,
			"containers[0].resourcesPolicy.resourcesExpr.requests.memory: Invalid: invalid expression: column 7: division by zero"}},
		"a constant that is negative": {`{resourcesPolicy: {targetContainersNameRegex: ., resourcesExpr: {limits: {cpu: 1-2}}}}`, []string{
			"containers[0].resourcesPolicy.resourcesExpr.limits.cpu: Invalid: invalid expression: the result -1 is negative"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var c appsv1beta1.SidecarContainer
			if err := yaml.UnmarshalStrict([]byte(tc.container), &c); err != nil {
				t.Fatal(err)
			}
			var errs field.ErrorList
			validateResourcesPolicy(&c, place{field.NewPath("containers").Index(0), &errs})
			if len(errs) != len(tc.want) {
				t.Fatalf("errors: %v\nwant %q", errs, tc.want)
			}
			for i, err := range errs {
				kind := map[field.ErrorType]string{field.ErrorTypeInvalid: "Invalid", field.ErrorTypeRequired: "Required"}[err.Type]
				if got := err.Field + ": " + kind + ": " + err.Detail; !strings.HasPrefix(got, tc.want[i]) {
					t.Errorf("error %d: %s\nwant %s", i, got, tc.want[i])
				}
			}
		})
	}
}
