package validation

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/expr"
)

// The rules of OpenKruise's resourcesPolicy, with T21 and T22 repaired.
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
		"a long regular expression": {`{resourcesPolicy: {targetContainersNameRegex: "` + strings.Repeat("a", 2049) + `", resourcesExpr: {limits: {}}}}`, []string{
			"containers[0].resourcesPolicy.targetContainersNameRegex: Invalid: invalid regular expression: it has 2049 bytes, and the limit is 2048"}},
		"a regular expression of many repetitions": {`{resourcesPolicy: {targetContainersNameRegex: "` + strings.Repeat("a{1000}", 36) + `", resourcesExpr: {limits: {}}}}`, []string{
			"containers[0].resourcesPolicy.targetContainersNameRegex: Invalid: invalid regular expression: together with it, the regular expressions of this SidecarSet compile to more than 4000 steps"}},
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
			validateResourcesPolicy(&c, new(expr.Targets), place{field.NewPath("containers").Index(0), &errs})
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

// The containers of both lists share the bound.
func TestRegularExpressionsOfASidecarSetAreBoundedTogether(t *testing.T) {
	policy := `, image: a, resourcesPolicy: {targetContainersMode: sum, targetContainersNameRegex: "a{900}", resourcesExpr: {limits: {cpu: cpu}}}`
	var set appsv1beta1.SidecarSet
	text := "spec: {selector: {matchLabels: {app: web}}, initContainers: [{name: i, restartPolicy: Always" + policy + "}], containers: ["
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		text += "{name: " + name + ", podInjectPolicy: BeforeAppContainer, shareVolumePolicy: {type: disabled}" + policy + "},"
	}
	if err := yaml.UnmarshalStrict([]byte(text+"]}"), &set); err != nil {
		t.Fatal(err)
	}
	var errs field.ErrorList
	validateContainers(&set.Spec, place{field.NewPath("spec"), &errs})
	if len(errs) != 2 || errs[0].Field != "spec.containers[3].resourcesPolicy.targetContainersNameRegex" {
		t.Errorf("errors: %v; want one about d and one about e", errs)
	}
}
