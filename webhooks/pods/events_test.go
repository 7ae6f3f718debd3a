package pods_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

// A Pod that is refused because of a conflict, or that lacks something, causes an Event for each SidecarSet that
// it concerns. What Pods lack counts.
func TestSidecarSetsAreToldByEvents(t *testing.T) {
	const refused, lacks = "InjectionConflict", "InjectionIncomplete"
	copies := func(name string) map[string]any {
		return fixtures.SidecarSet(name).Select("app", "copied").Container(name, "log:v1").
			With("transferEnv", []any{map[string]any{"sourceContainerName": "app", "envNames": []any{"A", "B"}}}).Map()
	}
	store := storeOf(t,
		fixtures.SidecarSet("log").Container("log", "log:v1").Map(),
		fixtures.SidecarSet("log-too").Container("log", "log:v2").Map(),
		fixtures.SidecarSet("mesh").Select("app", "meshed").Container("mesh", "mesh:v1").Map(),
		fixtures.SidecarSet("node").Select("app", "hosted").Container("node", "node:v1").With("ports", []any{map[string]any{"containerPort": 80}}).Map(),
		fixtures.SidecarSet("other").Select("app", "hosted").PatchAnnotation("MergePatchJson", "merged", "{}").Container("other", "other:v1").Map(),
		copies("one"), copies("two"),
	)
	pod := func(app string) *fixtures.PodBuilder {
		return fixtures.Pod("web-1").Label("app", app).Container("app", "app:v1")
	}
	hosted := fixtures.Pod("web-1").Label("app", "hosted").Container("app", "app:v1").With("ports", []any{map[string]any{"containerPort": 80}}).Spec("hostNetwork", true)
	in := func(member string, value any) func(map[string]any) {
		return func(request map[string]any) { request[member] = value }
	}
	both, copiers := []string{"log", "log-too"}, []string{"one", "two"}
	tests := map[string]struct {
		pod    *fixtures.PodBuilder
		change func(request map[string]any)
		reason string
		want   []string // SidecarSets
		says   string
	}{
		"a conflict of two SidecarSets":     {pod("web"), nil, refused, both, "A Pod in namespace default was refused: SidecarSets"},
		"a conflict with the Pod":           {pod("meshed").Container("mesh", "app:v1"), nil, refused, []string{"mesh"}, `A Pod in namespace default was refused: SidecarSet "mesh" brings`},
		"a conflict where no namespace is":  {pod("web"), in("namespace", "forged"), refused, both, "A Pod was refused: SidecarSets"},
		"a conflict under dry-run":          {pod("web"), in("dryRun", true), "", nil, ""},
		"of a Pod that speaks of dry-run":   {pod("web").Annotation("a", `"dryRun":true`), nil, refused, both, "A Pod in namespace default"},
		"of a Pod that does not fit":        {hosted, nil, refused, []string{"node"}, `A Pod in namespace default was refused: SidecarSet "node" does not fit this Pod: spec.containers[0].ports[0] of container "node"`},
		"a conflict of an annotation":       {pod("hosted").Annotation("merged", "{"), nil, refused, []string{"other"}, `A Pod in namespace default was refused: SidecarSet "other" merges JSON`},
		"a conflict that no SidecarSet has": {pod("other"), nil, "", nil, ""},
		"variables that are not there":      {pod("copied"), nil, lacks, copiers, `A Pod in namespace default does not get all that the SidecarSet asks for: container "`},
		"variables that are":                {pod("copied").Env("A", "1").Env("B", "2"), nil, "", nil, ""},
		"under dry-run":                     {pod("copied"), in("dryRun", true), "", nil, ""},
		"where no namespace is":             {pod("copied"), in("namespace", "forged"), lacks, copiers, "A Pod does not get all"},
		"of a Pod that is refused":          {pod("copied").Container("one", "x:1"), nil, refused, []string{"one"}, "A Pod in namespace default was refused"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			registry := prometheus.NewRegistry()
			handler := server.Handler(newInjector(pods.Options{
				Snapshot: func() *match.Snapshot { return store }, Registry: registry,
				RecordEvent: func(e events.Event) {
					got = append(got, e.About.Name)
					if e.Reason != tc.reason || !strings.HasPrefix(e.Note, tc.says) || strings.Contains(e.Note, "web-1") || e.Reason == lacks && e.Action != "TransferEnv" {
						t.Errorf("the Event is %+v", e)
					}
				},
			}).static)
			document := request(tc.pod.Obj())
			if tc.change != nil {
				tc.change(document["request"].(map[string]any))
			}
			answer := fixtures.Review(t, handler, fixtures.Encode(t, document))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Events (-want +got):\n%s\nthe answer is %v, %v", diff, answer.Allowed, answer.Result)
			}
			want := map[string]int{"TransferEnv": 0, "Volume": 0, "PortName": 0}
			if tc.reason == lacks {
				want["TransferEnv"] = len(tc.want)
			}
			if diff := cmp.Diff(want, warningsOf(t, registry)); diff != "" {
				t.Errorf("counted (-want +got):\n%s", diff)
			}
		})
	}
}

// warningsOf returns how many warnings of each kind were counted.
func warningsOf(t *testing.T, registry *prometheus.Registry) map[string]int {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]int{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "sidecarset_injection_warnings_total" {
				counted[metric.GetLabel()[0].GetValue()] = int(metric.GetCounter().GetValue())
			}
		}
	}
	return counted
}
