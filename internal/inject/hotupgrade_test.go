package inject_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
)

func hotSidecar(image string) *fixtures.SidecarSetBuilder {
	return fixtures.SidecarSet("mesh").Container("mesh", image).With("upgradeStrategy", hot)
}

// A Pod created from the manifest of a running one has the pair in some
// state. What an upgrade leaves behind is as good as what injection makes; any
// other state is put right.
func TestComputeKnowsAHotUpgradePair(t *testing.T) {
	fresh := map[string]string{"app": "app:v1", "mesh-1": "mesh:v1", "mesh-2": "empty:1"}
	tests := map[string]struct {
		images map[string]string
		set    *fixtures.SidecarSetBuilder
		want   map[string]string // nil: the Pod is left as it is
	}{
		"as injected": {set: hotSidecar("mesh:v1")},
		"after a hot upgrade the roles are swapped": {images: map[string]string{"mesh-1": "empty:1", "mesh-2": "mesh:v1"}, set: hotSidecar("mesh:v1")},
		"both at work":          {images: map[string]string{"mesh-2": "mesh:v1"}, set: hotSidecar("mesh:v1"), want: fresh},
		"both idle":             {images: map[string]string{"mesh-1": "empty:1"}, set: hotSidecar("mesh:v1"), want: fresh},
		"out of date":           {images: map[string]string{"mesh-1": "mesh:v0"}, set: hotSidecar("mesh:v1"), want: fresh},
		"of an earlier version": {set: hotSidecar("mesh:v2"), want: map[string]string{"app": "app:v1", "mesh-1": "mesh:v2", "mesh-2": "empty:1"}},
		"of an earlier version, with swapped roles": {images: map[string]string{"mesh-1": "empty:1", "mesh-2": "mesh:v1"}, set: hotSidecar("mesh:v2"), want: map[string]string{"app": "app:v1", "mesh-1": "mesh:v2", "mesh-2": "empty:1"}},
		"of an earlier version, with another sibling": {
			set: fixtures.SidecarSet("mesh").Container("mesh", "mesh:v1").
				With("upgradeStrategy", map[string]any{"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:2"}),
			want: map[string]string{"app": "app:v1", "mesh-1": "mesh:v1", "mesh-2": "empty:2"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := fixtures.Pod("web").Container("app", "app:v1").Obj()
			pod, _ = injected(t, fixtures.Input(t, pod, hotSidecar("mesh:v1").Map()), pod)
			annotations(pod)[appsv1beta1.AnnotationVersionPrefix+"mesh-2"] = "4711" // as after an upgrade
			for name, image := range tc.images {
				containerOf(t, pod, name)["image"] = image
			}

			in := fixtures.Input(t, pod, tc.set.Map())
			in.Now = in.Now.Add(time.Hour)
			got, plan := injected(t, in, pod)
			if tc.want == nil {
				if !plan.Empty() || plan.Skipped[0].Reason != inject.SkipInjected {
					t.Errorf("patch %s, skipped %v", plan.AppendPatch(nil), plan.Skipped)
				}
				return
			}
			if diff := cmp.Diff(tc.want, images(got)); diff != "" {
				t.Errorf("images (-want +got):\n%s", diff)
			}
			if len(plan.Insertions) != 0 {
				t.Errorf("the pair was not replaced in place: %v", plan.Insertions)
			}
			if version := annotation(got, appsv1beta1.AnnotationVersionPrefix+"mesh-2"); version != "0" {
				t.Errorf("version of the idle container = %q, want 0", version)
			}
		})
	}
}

// The annotation that names the working containers is shared by all SidecarSets.
func TestComputeExtendsTheWorkingContainers(t *testing.T) {
	key := appsv1beta1.AnnotationWorkingHotUpgradeContainer
	for value, want := range map[string]string{
		"":                                  `{"mesh":"mesh-1"}`,
		"garbage":                           `{"mesh":"mesh-1"}`,
		`["mesh-2"]`:                        `{"mesh":"mesh-1"}`,
		`{"log":"log-2"}`:                   `{"log":"log-2","mesh":"mesh-1"}`,
		`{"mesh":"mesh-2", "log": "log-2"}`: `{"log":"log-2","mesh":"mesh-1"}`,
	} {
		pod := fixtures.Pod("web").Container("app", "app:v1").Annotation(key, value).Obj()
		got, _ := injected(t, fixtures.Input(t, pod, hotSidecar("mesh:v1").Map()), pod)
		if working := annotation(got, key); working != want {
			t.Errorf("%s becomes %s, want %s", value, working, want)
		}
	}
}
