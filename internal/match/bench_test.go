package match_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/test/rounds"
)

// manySets are as in a large cluster: most select by one label, some by two,
// some by a label and an expression. Only set-0 selects podLabels.
func manySets(b *testing.B, n int) []*inject.Compiled {
	sidecarSets := make([]*inject.Compiled, n)
	for i := range sidecarSets {
		var pods *metav1.LabelSelector
		app := fmt.Sprint("app-", i)
		switch {
		case i%10 < 7:
			pods = equal("app", app)
		case i%10 < 9:
			pods = equal("app", app, "tier", "front")
		default:
			pods = expr("canary", metav1.LabelSelectorOpDoesNotExist)
			pods.MatchLabels = map[string]string{"app": app}
		}
		sidecarSets[i] = compiled(b, fmt.Sprintf("set-%05d", i), pods, nil)
	}
	return sidecarSets
}

func podLabels(app string) labels.Set {
	return labels.Set{
		"app": app, "tier": "front", "pod-template-hash": "6d5857687f", "team": "payments",
		"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "web-1", "version": "v12",
	}
}

var sizes = []int{1, 10, 100, 1000, 10000}

func BenchmarkSelectOne(b *testing.B) { benchmarkSelect(b, podLabels("app-0"), 1) }

func BenchmarkSelectNone(b *testing.B) { benchmarkSelect(b, podLabels("other"), 0) }

func benchmarkSelect(b *testing.B, pod labels.Set, want int) {
	for _, n := range sizes {
		c := match.Build(manySets(b, n), nil)
		b.Run(fmt.Sprint("sets=", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				got, err := c.Select("prod", pod, nil)
				if err != nil || len(got.SidecarSets) != want {
					b.Fatalf("selected %d, want %d: %v", len(got.SidecarSets), want, err)
				}
			}
		})
	}
}

func BenchmarkBuild(b *testing.B) {
	for _, n := range sizes {
		sidecarSets := manySets(b, n)
		b.Run(fmt.Sprint("sets=", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				match.Build(sidecarSets, nil)
			}
		})
	}
}

// A Pod that no SidecarSet selects costs no garbage.
func TestSelectOfNothingAllocatesNothing(t *testing.T) {
	rounds.NeedExactMemory(t)
	c := match.Build([]*inject.Compiled{
		compiled(t, "a", equal("app", "web"), nil),
		compiled(t, "b", equal("team", "payments"), equal(nameLabel, "test")),
		compiled(t, "c", expr("zone", "Exists"), nil),
	}, nil)
	pod := podLabels("other")
	if n := testing.AllocsPerRun(100, func() { _, _ = c.Select("prod", pod, nil) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
