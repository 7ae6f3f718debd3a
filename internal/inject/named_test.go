package inject_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/fixtures"
)

// A refusal of the API server names elements by their places in the injected Pod.
func TestAPathNamesWhatTheSidecarSetBrought(t *testing.T) {
	sets := []map[string]any{
		fixtures.SidecarSet("a").Container("first", "i:1").Container("last", "i:1").AfterApp().InitContainer("setup", "i:1").Map(),
		fixtures.SidecarSet("b").Container("second", "i:1").Mount("v", "/v").Volume("v").Map(),
	}
	pod := app().Volume("own").Obj()
	got, plan := injected(t, fixtures.Input(t, pod, sets...), pod)
	owners := map[string]string{"first": "a", "last": "a", "setup": "a", "second": "b", "v": "b"}
	for _, list := range []string{"initContainers", "containers", "volumes"} {
		for i, element := range items(got, list) {
			name := element.(map[string]any)["name"].(string)
			var want, named []string
			if owner, is := owners[name]; is {
				want = []string{owner + "/" + name}
			}
			for _, e := range plan.Named(fmt.Sprintf(`Pod "web" is invalid: spec.%s[%d].name: Invalid value`, list, i)) {
				named = append(named, e.SidecarSet+"/"+e.Name)
			}
			if diff := cmp.Diff(want, named); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", list, name, diff)
			}
		}
	}
	if named := plan.Named("spec.containers[99].name, spec.hostNetwork"); named != nil {
		t.Errorf("named %v", named)
	}
}
