package inject_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
)

// policySet has one sidecar for each regular expression.
func policySet(targets ...string) *fixtures.SidecarSetBuilder {
	set := fixtures.SidecarSet("sized").Select("app", "web")
	for i, target := range targets {
		set.Container(fmt.Sprint("side-", i), "side:v1").With("resourcesPolicy", map[string]any{
			"targetContainersMode": "sum", "targetContainersNameRegex": target,
			"resourcesExpr": map[string]any{"limits": map[string]any{"cpu": "cpu/2"}},
		})
	}
	return set
}

// A policy that was stored before the rule existed refuses every Pod, with a reason of the
// kind that the leader shows as not Ready.
func TestAStoredPolicyThatTakesTooMuchCanServeNoPod(t *testing.T) {
	tests := map[string]struct {
		targets     []string
		field, want string
	}{
		"long":               {[]string{strings.Repeat("a", 2049)}, "containers[0]", "it has 2049 bytes, and the limit is 2048"},
		"the attack":         {[]string{strings.Repeat("a{1000}", 3000)}, "containers[0]", "and the limit is 2048"},
		"many repetitions":   {[]string{".*", strings.Repeat("a{1000}", 36)}, "containers[1]", "more than 4000 steps"},
		"together":           {slices.Repeat([]string{"a{900}"}, 100), "containers[4]", "more than 4000 steps"},
		"not an expression":  {[]string{"("}, "containers[0]", "missing closing )"},
		"many that are used": {targets: slices.Repeat([]string{"^(app|web-.*)$"}, 100)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := fixtures.Pod("p").Label("app", "web").Container("app", "app:v1").Obj()
			_, err := inject.Compute(fixtures.Input(t, pod, policySet(tc.targets...).Manifest()))
			var invalid *inject.InvalidError
			switch {
			case tc.want == "" && err != nil:
				t.Fatal(err)
			case tc.want == "":
			case !errors.As(err, &invalid):
				t.Fatalf("Compute: %.200v; want an InvalidError", err)
			case invalid.Field != "spec."+tc.field+".resourcesPolicy.targetContainersNameRegex" || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 600:
				t.Errorf("Compute: %.600v", err)
			}
		})
	}
}
