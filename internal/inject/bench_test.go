package inject_test

import (
	"fmt"
	"testing"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
)

// typical brings two containers, an init container and two volumes.
func typical(name string) map[string]any {
	return fixtures.SidecarSet(name).
		InitContainer(name+"-init", "registry.example.com/init:v1").Mount(name+"-conf", "/conf").
		Container(name, "registry.example.com/proxy:v12").Env("LEVEL", "info").Env("ADDRESS", "127.0.0.1:15000").
		Mount(name+"-conf", "/conf").Mount(name+"-log", "/var/log").
		With("args", []any{"--listen=:15000", "--config=/conf/proxy.yaml"}).
		With("resources", map[string]any{"requests": map[string]any{"cpu": "100m", "memory": "128Mi"}}).
		Container(name+"-tail", "registry.example.com/tail:v3").AfterApp().Mount(name+"-log", "/var/log").
		Volume(name + "-conf").Volume(name + "-log").PullSecret("registry").LatestRevision(name + "-6d5857687f").Map()
}

func benchPod() map[string]any {
	return fixtures.Pod("web").Annotation("team", "payments").
		InitContainer("migrate", "app:v1").Container("app", "app:v1").Container("cron", "app:v1").
		Volume("data").Volume("tmp").Volume("kube-api-access-abcde").Obj()
}

func benchInput(b *testing.B, pod map[string]any, n int) inject.Input {
	sets := make([]map[string]any, n)
	for i := range sets {
		sets[i] = typical(fmt.Sprintf("set-%03d", i))
	}
	return fixtures.Input(b, pod, sets...)
}

var candidates = []int{1, 10, 100}

// BenchmarkInject is Compute and AppendPatch for a Pod that has nothing yet.
func BenchmarkInject(b *testing.B) {
	for _, n := range candidates {
		b.Run(fmt.Sprint("candidates=", n), func(b *testing.B) {
			in := benchInput(b, benchPod(), n)
			patch := make([]byte, 0, 1<<20)
			b.ReportAllocs()
			for b.Loop() {
				plan, err := inject.Compute(in)
				if err != nil {
					b.Fatal(err)
				}
				patch = plan.AppendPatch(patch[:0])
			}
			b.ReportMetric(float64(len(patch)), "patch-bytes")
		})
	}
}

// BenchmarkInjected is the same for a Pod that has our result.
func BenchmarkInjected(b *testing.B) {
	for _, n := range candidates {
		b.Run(fmt.Sprint("candidates=", n), func(b *testing.B) {
			in := benchInput(b, benchPod(), n)
			plan, err := inject.Compute(in)
			if err != nil {
				b.Fatal(err)
			}
			in.Pod = fixtures.View(b, fixtures.Apply(b, plan, benchPod()))
			b.ReportAllocs()
			for b.Loop() {
				plan, err := inject.Compute(in)
				if err != nil || !plan.Empty() {
					b.Fatal(err, plan)
				}
			}
		})
	}
}

// BenchmarkAdmit is the decision of a whole admission: one SidecarSet of many
// selects the Pod.
func BenchmarkAdmit(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint("sets=", n), func(b *testing.B) {
			sidecarSets := make([]*inject.Compiled, n)
			for i := range sidecarSets {
				sidecarSets[i] = fixtures.Compiled(b, fixtures.SidecarSet(fmt.Sprint("set-", i)).Container("c", "c:1").Select("app", fmt.Sprint("app-", i)).Map())
			}
			sidecarSets[0] = fixtures.Compiled(b, typical("set-0"))
			store, view, patch := match.Build(sidecarSets, nil), fixtures.View(b, benchPod()), make([]byte, 0, 1<<16)
			b.ReportAllocs()
			for b.Loop() {
				selection, err := store.Select("default", view.Labels, nil)
				selected := selection.SidecarSets
				if err != nil || len(selected) != 1 {
					b.Fatal(selected, err)
				}
				plan, err := inject.Compute(inject.Input{Pod: view, Candidates: []inject.Candidate{{Current: selected[0]}}, Now: fixtures.Now, Known: store.Has})
				if err != nil {
					b.Fatal(err)
				}
				patch = plan.AppendPatch(patch[:0])
			}
		})
	}
}
