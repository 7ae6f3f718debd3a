package inject_test

import (
	"testing"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
)

// Renews promises what Compute then does for a new Pod.
func TestRenewsSaysWhatANewPodGets(t *testing.T) {
	log := func() *fixtures.SidecarSetBuilder { return fixtures.SidecarSet("log").Container("log", "log:v2") }
	pinned := members{"revision": members{"revisionName": "log-1"}}
	partial := members{"revision": members{"revisionName": "log-1", "policy": "Partial"}}
	canary := func() *fixtures.SidecarSetBuilder {
		return fixtures.SidecarSet("log-canary").Container("log", "log:v3").
			Annotation(appsv1beta1.AnnotationCanary, "true").Annotation(appsv1beta1.AnnotationBase, "log")
	}
	tests := map[string]struct {
		sets []*fixtures.SidecarSetBuilder
		want bool
	}{
		"alone":                         {[]*fixtures.SidecarSetBuilder{log()}, true},
		"not among those that select":   {[]*fixtures.SidecarSetBuilder{fixtures.SidecarSet("mesh").Container("mesh", "mesh:v1")}, false},
		"injection paused":              {[]*fixtures.SidecarSetBuilder{log().Spec("injectionStrategy", members{"paused": true})}, false},
		"pinned":                        {[]*fixtures.SidecarSetBuilder{log().Spec("injectionStrategy", pinned)}, false},
		"pinned by chance":              {[]*fixtures.SidecarSetBuilder{log().Spec("injectionStrategy", partial).Spec("updateStrategy", members{"partition": "50%"})}, false},
		"pinned for no Pod":             {[]*fixtures.SidecarSetBuilder{log().Spec("injectionStrategy", partial)}, true},
		"pinned for the Pod":            {[]*fixtures.SidecarSetBuilder{log().Spec("injectionStrategy", partial).Spec("updateStrategy", members{"selector": members{"matchLabels": members{"app": "other"}}})}, false},
		"beside a canary":               {[]*fixtures.SidecarSetBuilder{log(), canary()}, false},
		"beside a paused canary":        {[]*fixtures.SidecarSetBuilder{log(), canary().Spec("injectionStrategy", members{"paused": true})}, true},
		"beside another that conflicts": {[]*fixtures.SidecarSetBuilder{log(), fixtures.SidecarSet("mesh").Container("log", "mesh:v1")}, false},
		"beside another that is pinned": {[]*fixtures.SidecarSetBuilder{log(), fixtures.SidecarSet("mesh").Container("mesh", "mesh:v1").Spec("injectionStrategy", members{"revision": members{"revisionName": "mesh-1"}})}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var sidecarSets []*inject.Compiled
			for _, set := range tc.sets {
				sidecarSets = append(sidecarSets, fixtures.Compiled(t, set.Map()))
			}
			if got := inject.Renews(sidecarSets, "log", map[string]string{"app": "web"}); got != tc.want {
				t.Errorf("Renews says %v, want %v", got, tc.want)
			}
		})
	}
}
