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

// An injected Pod that lacks something causes an Event for a SidecarSet and a kind, and counts.
func TestWhatAPodDoesNotGetIsTold(t *testing.T) {
	copies := func(name, container string) map[string]any {
		return fixtures.SidecarSet(name).Container(container, "log:v1").
			With("transferEnv", []any{map[string]any{"sourceContainerName": "app", "envNames": []any{"A", "B"}}}).Map()
	}
	store := storeOf(t, copies("log", "log"), copies("mesh", "mesh"))
	web := func() *fixtures.PodBuilder { return fixtures.Pod("web").Container("app", "app:v1") }
	tests := map[string]struct {
		pod    *fixtures.PodBuilder
		change func(request map[string]any)
		want   []string // SidecarSets
		says   string
	}{
		"to both SidecarSets":          {web(), nil, []string{"log", "mesh"}, `A Pod in namespace default does not get all that the SidecarSet asks for: container "`},
		"not if it gets all":           {web().Env("A", "1").Env("B", "2"), nil, nil, ""},
		"not under dry-run":            {web(), func(r map[string]any) { r["dryRun"] = true }, nil, ""},
		"without an unknown namespace": {web(), func(r map[string]any) { r["namespace"] = "forged" }, []string{"log", "mesh"}, "A Pod does not get all"},
		"not if it is refused":         {web().Container("log", "x:1"), nil, nil, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			registry := prometheus.NewRegistry()
			handler := server.Handler(newInjector(pods.Options{
				Snapshot: func() *match.Snapshot { return store }, Registry: registry,
				RecordEvent: func(e events.Event) {
					if e.Reason != "InjectionIncomplete" {
						return
					}
					got = append(got, e.About.Name)
					if e.Action != "TransferEnv" || !strings.HasPrefix(e.Note, tc.says) || strings.Contains(e.Note, "web") {
						t.Errorf("the Event is %+v", e)
					}
				},
			}).static)
			document := request(tc.pod.Obj())
			if tc.change != nil {
				tc.change(document["request"].(map[string]any))
			}
			fixtures.Review(t, handler, fixtures.Encode(t, document))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
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
			want := map[string]int{"TransferEnv": len(tc.want), "Volume": 0, "PortName": 0}
			if diff := cmp.Diff(want, counted); diff != "" {
				t.Errorf("counted (-want +got):\n%s", diff)
			}
		})
	}
}
