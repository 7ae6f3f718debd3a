package inject_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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

// A Pod's parts are read only for those who need them.
func TestProgramNeeds(t *testing.T) {
	tests := map[string]struct {
		set  *fixtures.SidecarSetBuilder
		want inject.Parts
	}{
		"nothing for a plain sidecar":    {one().Env("A", "1").Mount("v", "/v").With("shareVolumePolicy", disabled), 0},
		"env for transferEnv":            {one().With("transferEnv", transferOf("app", "A")), inject.PartEnv},
		"mounts and env for sharing":     {one().With("shareVolumePolicy", enabled), inject.PartVolumeMounts | inject.PartEnv},
		"devices for sharing them":       {one().With("shareVolumeDevicePolicy", enabled), inject.PartVolumeDevices},
		"resources for resourcesPolicy":  {fixtures.SidecarSet("s").Native("n", "n:1").With("resourcesPolicy", halfCPU), inject.PartResources},
		"all that its containers need":   {one().With("transferEnv", transferOf("app", "A")).Container("d", "d:1").With("shareVolumeDevicePolicy", enabled), inject.PartEnv | inject.PartVolumeDevices},
		"the same while it is paused":    {one().With("shareVolumePolicy", enabled).Paused(), inject.PartVolumeMounts | inject.PartEnv},
		"nothing of a Pod without a use": {one().With("transferEnv", []any{}), 0},
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

func TestComputeRefusesWhatIsNotSupportedYet(t *testing.T) {
	tests := map[string]struct {
		set   *fixtures.SidecarSetBuilder
		field string
	}{
		"resourcesPolicy":                 {fixtures.SidecarSet("s").Native("n", "n:1").With("resourcesPolicy", halfCPU), "spec.initContainers[0].resourcesPolicy"},
		"a recorded revision":             {one().Spec("injectionStrategy", map[string]any{"revision": map[string]any{"revisionName": "s-1"}}), "spec.injectionStrategy.revision"},
		"nothing for a revision without names":                     {one().Spec("injectionStrategy", map[string]any{"revision": map[string]any{"policy": "Always"}}), ""},
		"nothing while it is paused":                               {one().With("resourcesPolicy", halfCPU).Paused(), ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := inject.Compute(fixtures.Input(t, app().Obj(), tc.set.Map()))
			if tc.field == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			var unsupported *inject.UnsupportedError
			if !errors.As(err, &unsupported) {
				t.Fatalf("error = %v, want an UnsupportedError", err)
			}
			if diff := cmp.Diff(inject.UnsupportedError{SidecarSet: "s", Field: tc.field}, *unsupported); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if !strings.Contains(err.Error(), "not supported yet") {
				t.Errorf("message: %v", err)
			}
		})
	}
}
