package defaults

import "testing"

// If the user changes a tag only, the default of imagePullPolicy may change with it.
func TestPolicyFollowsTag(t *testing.T) {
	container := func(image, policy string) map[string]any {
		return map[string]any{"name": "a", "image": image, "imagePullPolicy": policy}
	}
	for name, tc := range map[string]struct {
		before, after map[string]any
		want          bool
	}{
		"from latest to a fixed tag":  {container("b:latest", "Always"), container("b:1", "IfNotPresent"), true},
		"from no tag to a fixed tag":  {container("b", "Always"), container("b:1", "IfNotPresent"), true},
		"to latest":                   {container("b:1", "IfNotPresent"), container("b:latest", "Always"), true},
		"the policy alone":            {container("b:1", "IfNotPresent"), container("b:1", "Always"), false},
		"another policy than default": {container("b:latest", "IfNotPresent"), container("b:1", "Never"), false},
		"an equal policy":             {container("b:latest", "Always"), container("b:1", "Always"), false},
	} {
		if got := PolicyFollowsTag(tc.before, tc.after); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
