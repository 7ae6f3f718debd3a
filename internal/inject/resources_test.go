package inject

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/expr"
)

const policyField = "spec.containers[0].resourcesPolicy"

func compiledPolicy(t *testing.T, policy string, own map[string]any) *resourcesPolicy {
	t.Helper()
	typed := &appsv1beta1.ResourcesPolicy{TargetContainersMode: "sum", TargetContainersNameRegex: ".*"}
	if err := yaml.UnmarshalStrict([]byte(policy), typed); err != nil {
		t.Fatal(err)
	}
	return compileResourcesPolicy(ResourcesError{SidecarSet: "log", Container: "agent", Field: policyField}, typed, new(expr.Targets), own)
}

// podContainers reads resources by container name, in the order of the names.
func podContainers(t *testing.T, text string) []containerResources {
	t.Helper()
	var byName map[string]json.RawMessage
	if err := yaml.Unmarshal([]byte(text), &byName); err != nil {
		t.Fatal(err)
	}
	var out []containerResources
	for name, resources := range byName {
		c, err := parseResources(&ContainerView{Name: name, Resources: resources})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b containerResources) int { return strings.Compare(a.name, b.name) })
	return out
}

func TestResourcesPolicy(t *testing.T) {
	const (
		example = `{app: {limits: {cpu: 1, memory: 101}, requests: {cpu: 200m}}}`
		two     = `{a: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 100m}}, b: {limits: {cpu: 500m, memory: 512Mi}, requests: {cpu: 250m, memory: 256Mi}}}`
		partly  = `{a: {limits: {cpu: 1}, requests: {memory: 1Gi}}, b: {limits: {memory: 1Gi}}}`
	)
	tests := map[string]struct {
		containers, policy string
		own                map[string]any
		excluded           []string
		want               string
	}{
		"the worked example of OpenKruise": {
			containers: example,
			policy:     `{resourcesExpr: {limits: {cpu: "max(cpu*50%, 50m)", memory: memory*30%}, requests: {cpu: cpu*2, memory: memory*2}}}`,
			want:       `{limits: {cpu: 500m, memory: "31"}, requests: {cpu: 400m, memory: "0"}}`,
		},
		"sum adds up":             {containers: two, policy: `{resourcesExpr: {limits: {cpu: cpu, memory: memory}, requests: {cpu: cpu, memory: memory}}}`, want: `{limits: {cpu: 1500m, memory: 1536Mi}, requests: {cpu: 350m, memory: 256Mi}}`},
		"max takes the largest":   {containers: two, policy: `{targetContainersMode: max, resourcesExpr: {limits: {cpu: cpu, memory: memory}, requests: {cpu: cpu, memory: memory}}}`, want: `{limits: {cpu: "1", memory: 1Gi}, requests: {cpu: 250m, memory: 256Mi}}`},
		"absent expressions":      {containers: two, policy: `{resourcesExpr: {limits: {}, requests: {cpu: cpu/2}}}`, want: `{requests: {cpu: 175m}}`},
		"no expression at all":    {containers: two, policy: `{resourcesExpr: {}}`, want: `{}`},
		"the regex is no anchor":  {containers: `{app: {limits: {cpu: 1}}, web-app-1: {limits: {cpu: 2}}, log: {}}`, policy: `{targetContainersNameRegex: app, resourcesExpr: {limits: {cpu: cpu}}}`, want: `{limits: {cpu: "3"}}`},
		"the regex as an anchor":  {containers: `{app: {limits: {cpu: 1}}, web-app-1: {limits: {cpu: 2}}, log: {}}`, policy: `{targetContainersNameRegex: ^app$, resourcesExpr: {limits: {cpu: cpu}}}`, want: `{limits: {cpu: "1"}}`},
		"excluded names":          {containers: `{app: {limits: {cpu: 1}}, mesh-1: {}, mesh-2: {}}`, policy: `{resourcesExpr: {limits: {cpu: cpu}}}`, excluded: []string{"mesh-1", "mesh-2"}, want: `{limits: {cpu: "1"}}`},
		"one limit is missing":    {containers: partly, policy: `{resourcesExpr: {limits: {cpu: cpu, memory: memory/2}, requests: {cpu: cpu, memory: memory}}}`, want: `{requests: {cpu: "0", memory: 1Gi}}`},
		"even a constant (T23)":   {containers: partly, policy: `{resourcesExpr: {limits: {cpu: 1, memory: 200Mi}}}`, want: `{}`},
		"a constant otherwise":    {containers: two, policy: `{resourcesExpr: {limits: {memory: 200Mi}}}`, want: `{limits: {memory: 200Mi}}`},
		"one that is unlimited":   {containers: `{a: {limits: {cpu: 1}}, b: {limits: {cpu: 1, memory: 1Gi}}}`, policy: `{resourcesExpr: {limits: {cpu: cpu, memory: memory}}}`, want: `{limits: {cpu: "2"}}`},
		"a limit of 0 is a limit": {containers: `{a: {limits: {cpu: 0}}, b: {limits: {cpu: 1}}}`, policy: `{resourcesExpr: {limits: {cpu: cpu}}}`, want: `{limits: {cpu: "1"}}`},
		"requests of nothing":     {containers: `{a: {}, b: null}`, policy: `{resourcesExpr: {limits: {cpu: cpu}, requests: {cpu: cpu*2, memory: "max(memory, 64Mi)"}}}`, want: `{requests: {cpu: "0", memory: 64Mi}}`},
		"capitals (T21)":          {containers: two, policy: `{resourcesExpr: {limits: {memory: MEMORY*50%}}}`, want: `{limits: {memory: 768Mi}}`},
		"whole bytes (T23)":       {containers: `{a: {limits: {memory: 1Gi}}}`, policy: `{resourcesExpr: {limits: {memory: memory*10%}}}`, want: `{limits: {memory: "107374183"}}`},
		"other resources":         {containers: `{a: {limits: {cpu: 1, nvidia.com/gpu: 1, ephemeral-storage: 1Gi}}}`, policy: `{resourcesExpr: {limits: {cpu: cpu}}}`, want: `{limits: {cpu: "1"}}`},
		"beyond 2^63 in the sum":  {containers: `{a: {limits: {memory: 9223372036854775807}}, b: {limits: {memory: 9223372036854775807}}}`, policy: `{resourcesExpr: {limits: {memory: memory/2}}}`, want: `{limits: {memory: "9223372036854775807"}}`},
		"claims stay (T24)": {
			containers: two, policy: `{resourcesExpr: {limits: {cpu: cpu}}}`,
			own:  map[string]any{"claims": []any{map[string]any{"name": "gpu"}}, "limits": map[string]any{"cpu": "9"}, "requests": map[string]any{}, "future": true},
			want: `{claims: [{name: gpu}], future: true, limits: {cpu: 1500m}}`,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			excluded := func(name string) bool { return slices.Contains(tc.excluded, name) }
			p := compiledPolicy(t, tc.policy, tc.own)
			for range 2 { // the policy itself stays as it is
				computed, err := p.compute(new(containerResources), podContainers(t, tc.containers), excluded)
				if err != nil {
					t.Fatalf("resources: %v", err)
				}
				var want map[string]any
				if err := yaml.Unmarshal([]byte(tc.want), &want); err != nil {
					t.Fatal(err)
				}
				text, err := json.Marshal(p.resources(computed))
				if err != nil {
					t.Fatal(err)
				}
				var got map[string]any
				if err := json.Unmarshal(text, &got); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("resources (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestResourcesPolicyRefuses(t *testing.T) {
	tests := map[string]struct {
		containers, policy string
		field, want        string
	}{
		"sidecars only": {
			`{sidecar: {}}`, `{}`, ".targetContainersNameRegex", `no containers match the regex pattern ".*"`,
		},
		"a negative result": {
			`{app: {limits: {cpu: 1500m}}}`, `{resourcesExpr: {limits: {cpu: cpu-2}}}`, ".resourcesExpr.limits.cpu",
			"failed to evaluate the expression with cpu = 1500m: the result -0.5 is negative; write max(…, 0) around it",
		},
		"a result that is too large": {
			`{app: {requests: {memory: 1Pi}}}`, `{resourcesExpr: {requests: {memory: memory*1e6}}}`, ".resourcesExpr.requests.memory",
			"failed to evaluate the expression with memory = 1Pi: the result is too large for a quantity",
		},
		"a literal with two points": {
			`{app: {}}`, `{resourcesExpr: {requests: {cpu: "max(cpu, 5.0.1)"}}}`, ".resourcesExpr.requests.cpu",
			`failed to parse expression "max(cpu, 5.0.1)": column 10: "5.0.1" is neither`,
		},
		"a product of quantities, though the limit is not set (T21)": {
			`{app: {}}`, `{resourcesExpr: {limits: {memory: memory*memory}}}`, ".resourcesExpr.limits.memory",
			`failed to parse expression "memory*memory": column 7: multiplication of two quantities`,
		},
		"another mode": {
			`{app: {}}`, `{targetContainersMode: avg}`, ".targetContainersMode", `"avg" is neither sum nor max; correct it`,
		},
		"what is no regular expression": {
			`{app: {}}`, `{targetContainersNameRegex: "("}`, ".targetContainersNameRegex", "error parsing regexp: missing closing ): `(`; correct it",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := compiledPolicy(t, tc.policy, nil)
			got, err := p.compute(new(containerResources), podContainers(t, tc.containers), func(name string) bool { return name == "sidecar" })
			var problem *ResourcesError
			if !errors.As(err, &problem) {
				t.Fatalf("resources: %v, %v; want a *ResourcesError", got, err)
			}
			if problem.Field != policyField+tc.field || problem.SidecarSet != "log" || problem.Container != "agent" {
				t.Errorf("at %s of %s/%s, want %s", problem.Field, problem.SidecarSet, problem.Container, policyField+tc.field)
			}
			want := `SidecarSet "log": computing the resources of container "agent": ` + policyField + tc.field + ": " + tc.want
			if !strings.HasPrefix(err.Error(), want) {
				t.Errorf("resources: %v\nwant %s", err, want)
			}
		})
	}
}

func TestParseResourcesRefusesWhatIsNoQuantity(t *testing.T) {
	for _, q := range []string{`"1e900000000"`, `1e900000000`, `"1111111111111111111e90000000"`, `"1E-90000000"`, `"` + strings.Repeat("1", 33) + `"`} {
		if _, err := parseResources(&ContainerView{Name: "app", Resources: json.RawMessage(`{"limits":{"cpu":` + q + `}}`)}); err == nil || !strings.Contains(err.Error(), "shorter number") {
			t.Errorf("%s: %v", q, err)
		}
	}
	if c, err := parseResources(&ContainerView{Name: "app", Resources: json.RawMessage(`{"limits":{"cpu":null,"memory":1e9}}`)}); err != nil || c.Limits["cpu"] != nil || c.Limits["memory"].Value() != 1e9 {
		t.Errorf("null and a number: %+v, %v", c, err)
	}
	_, err := parseResources(&ContainerView{Name: "app", Resources: json.RawMessage(`{"limits":{"cpu":"much"}}`)})
	if err == nil || !strings.HasPrefix(err.Error(), `reading the resources of container "app": `) {
		t.Errorf("parseResources: %v", err)
	}
}
