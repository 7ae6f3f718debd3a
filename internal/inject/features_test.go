package inject_test

import (
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
)

var (
	enabled  = map[string]any{"type": "enabled"}
	disabled = map[string]any{"type": "disabled"}
	hot      = map[string]any{"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:1"}
	halfCPU  = map[string]any{"targetContainersMode": "sum", "resourcesExpr": map[string]any{"limits": map[string]any{"cpu": "cpu/2"}}}
)

// transferOf copies variables of one container.
func transferOf(container string, names ...any) []any {
	return []any{map[string]any{"sourceContainerName": container, "envNames": names}}
}

func one() *fixtures.SidecarSetBuilder { return fixtures.SidecarSet("s").Container("c", "c:1") }

// A Pod's parts are read only for the Programs that need them.
func TestProgramNeeds(t *testing.T) {
	tests := map[string]struct {
		set  *fixtures.SidecarSetBuilder
		want inject.Parts
	}{
		"nothing for a plain sidecar":     {one().Env("A", "1").Mount("v", "/v").With("shareVolumePolicy", disabled), 0},
		"env for transferEnv":             {one().With("transferEnv", transferOf("app", "A")), inject.PartEnv},
		"mounts and env for sharing":      {one().With("shareVolumePolicy", enabled), inject.PartVolumeMounts | inject.PartEnv},
		"devices for sharing them":        {one().With("shareVolumeDevicePolicy", enabled), inject.PartVolumeDevices},
		"resources for resourcesPolicy":   {fixtures.SidecarSet("s").Native("n", "n:1").With("resourcesPolicy", halfCPU), inject.PartResources},
		"all that its containers need":    {one().With("transferEnv", transferOf("app", "A")).Container("d", "d:1").With("shareVolumeDevicePolicy", enabled), inject.PartEnv | inject.PartVolumeDevices},
		"ports if a Service can name one": {fixtures.SidecarSet("s").Native("n", "n:1").With("ports", []any{map[string]any{"name": "http", "containerPort": 80}}), inject.PartPorts},
		"the same while it is paused":     {one().With("shareVolumePolicy", enabled).Paused(), inject.PartVolumeMounts | inject.PartEnv},
		"nothing of a Pod without a use":  {one().With("transferEnv", []any{}), 0},
		"ports for ports of the node":     {one().With("ports", nodePort(80)), inject.PartPorts},
		"nothing for other ports":         {one().With("ports", []any{map[string]any{"containerPort": 80}}), 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := fixtures.Program(t, tc.set.Map()).Needs; got != tc.want {
				t.Errorf("Needs = %04b, want %04b", got, tc.want)
			}
		})
	}
}

// A caller that reads too little of the Pod learns of it, and no Pod gets a
// sidecar that lacks something.
func TestComputeRefusesAPodThatWasReadInPart(t *testing.T) {
	in := fixtures.Input(t, app().Obj(), one().With("transferEnv", transferOf("app", "A")).Map())
	in.Pod.Parts = inject.PartVolumeMounts
	if _, err := inject.Compute(in); err == nil || !strings.Contains(err.Error(), `"s"`) {
		t.Errorf("error = %v", err)
	}
}

// A Pod that carries an earlier version of the sidecars gets the resources that it got at
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
