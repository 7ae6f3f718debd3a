package inject_test

import (
	"testing"

	"github.com/sidecarset/operator/internal/fixtures"
)

var (
	enabled = map[string]any{"type": "enabled"}
	hot     = map[string]any{"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:1"}
	halfCPU = map[string]any{"targetContainersMode": "sum", "resourcesExpr": map[string]any{"limits": map[string]any{"cpu": "cpu/2"}}}
)

// transferOf copies variables of one container.
func transferOf(container string, names ...any) []any {
	return []any{map[string]any{"sourceContainerName": container, "envNames": names}}
}

func one() *fixtures.SidecarSetBuilder { return fixtures.SidecarSet("s").Container("c", "c:1") }

// A Pod that has an earlier version of the sidecars gets the resources that it got at
// first: the pair of a hot upgrade is not a target of its own policy, although its names
// are not those of the SidecarSet.
func TestComputedResourcesDoNotDependOnEarlierSidecars(t *testing.T) {
	for name, upgrade := range map[string]map[string]any{"hot": hot, "cold": {"upgradeType": "ColdUpgrade"}} {
		t.Run(name, func(t *testing.T) {
			set := func(image string) map[string]any {
				return fixtures.SidecarSet("mesh").Container("mesh", image).With("upgradeStrategy", upgrade).With("resourcesPolicy", halfCPU).Map()
			}
			pod := fixtures.Pod("web").Container("app", "app:v1").
				With("resources", map[string]any{"limits": map[string]any{"cpu": "1"}}).Obj()
			first, _ := injected(t, fixtures.Input(t, pod, set("mesh:v1")), pod)
			second, plan := injected(t, fixtures.Input(t, first, set("mesh:v2")), first)
			if len(plan.Replacements) == 0 || len(plan.Insertions) != 0 {
				t.Fatalf("patch: %s", plan.AppendPatch(nil))
			}
			for _, c := range second["spec"].(map[string]any)["containers"].([]any) {
				c := c.(map[string]any)
				want := `{"limits":{"cpu":"500m"}}`
				if c["name"] == "app" {
					want = `{"limits":{"cpu":"1"}}`
				}
				if got := marshal(t, c["resources"]); got != want {
					t.Errorf("resources of %s = %s, want %s", c["name"], got, want)
				}
			}
		})
	}
}
