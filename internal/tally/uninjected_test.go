package tally_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/internal/tally"
)

// The operator's refusal of a new container advises to delete a SidecarSet and create it again
// with other sidecars. Then there are Pods that list the SidecarSet and do not have its
// sidecars.
func TestPodsThatLackASidecarAreUninjected(t *testing.T) {
	listed := func() *fixtures.PodBuilder {
		return fixtures.Pod("web").Container("app", "app:v1").Annotation(appsv1beta1.AnnotationInjectedList, "log")
	}
	set := func() *fixtures.SidecarSetBuilder { return fixtures.SidecarSet("log").Select("app", "web") }
	hot := map[string]any{"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:v1"}
	const works = `{"hot":"hot-1"}`
	tests := map[string]struct {
		set  *fixtures.SidecarSetBuilder
		pod  *fixtures.PodBuilder
		want tally.Counters
	}{
		"another sidecar of the same SidecarSet before": {
			set().Container("new-agent", "a:v1"), listed().Container("old-agent", "a:v1").Injected(), tally.Counters{Uninjected: 1},
		},
		"one of two sidecars": {
			set().Container("log", "a:v1").Container("more", "a:v1"), listed().Container("log", "a:v1").Injected(), tally.Counters{Uninjected: 1},
		},
		"no native sidecar": {
			set().Native("proxy", "a:v1"), listed(), tally.Counters{Uninjected: 1},
		},
		"a container, and no native sidecar": {
			set().Container("log", "a:v1").Native("proxy", "a:v1"), listed().Container("log", "a:v1").Injected(), tally.Counters{Uninjected: 1},
		},
		"the native sidecar": {
			set().Native("proxy", "a:v1"), listed().InitContainer("proxy", "a:v1").Injected(), tally.Counters{Matched: 1},
		},
		"a plain init container is not a sidecar": {
			set().InitContainer("setup", "a:v1"), listed(), tally.Counters{Matched: 1},
		},
		"both containers of a hot-upgrade sidecar": {
			set().Container("hot", "a:v1").With("upgradeStrategy", hot),
			listed().Container("hot-1", "a:v1").Injected().Container("hot-2", "empty:v1").Injected().Annotation(appsv1beta1.AnnotationWorkingHotUpgradeContainer, works),
			tally.Counters{Matched: 1},
		},
		"one container of a hot-upgrade sidecar": {
			set().Container("hot", "a:v1").With("upgradeStrategy", hot),
			listed().Container("hot-1", "a:v1").Injected().Annotation(appsv1beta1.AnnotationWorkingHotUpgradeContainer, works),
			tally.Counters{Uninjected: 1},
		},
		"one container of a native hot-upgrade sidecar": {
			set().Native("hot", "a:v1").With("upgradeStrategy", hot),
			listed().InitContainer("hot-1", "a:v1").Injected().Annotation(appsv1beta1.AnnotationWorkingHotUpgradeContainer, works),
			tally.Counters{Uninjected: 1},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tl := newTally()
			namespaces := map[string]labels.Set{"default": {"kubernetes.io/metadata.name": "default"}}
			tl.SetSnapshot(match.Build([]*inject.Program{fixtures.Program(t, tc.set.Map())}, namespaces))
			tl.Set(podstate.FromPod(tc.pod.Typed()))
			if diff := cmp.Diff(tc.want, tl.State("log").Counters); diff != "" {
				t.Errorf("counters (-want +got):\n%s", diff)
			}
		})
	}
}
