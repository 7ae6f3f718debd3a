package pods_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/events"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/webhooks/pods"
	"github.com/sidecarset/operator/webhooks/server"
)

func TestAConflictIsToldToTheSidecarSetsThatHaveIt(t *testing.T) {
	store := storeOf(t,
		fixtures.SidecarSet("log").Container("log", "log:v1").Map(),
		fixtures.SidecarSet("log-too").Container("log", "log:v2").Map(),
		fixtures.SidecarSet("mesh").Select("app", "meshed").Container("mesh", "mesh:v1").Map(),
		fixtures.SidecarSet("node").Select("app", "hosted").Container("node", "node:v1").With("ports", []any{map[string]any{"containerPort": 80}}).Map(),
		fixtures.SidecarSet("other").Select("app", "hosted").PatchAnnotation("MergePatchJson", "merged", "{}").Container("other", "other:v1").Map(),
	)
	hosted := fixtures.Pod("web").Label("app", "hosted").Container("app", "app:v1").With("ports", []any{map[string]any{"containerPort": 80}}).Spec("hostNetwork", true)
	both := []string{"log", "log-too"}
	tests := map[string]struct {
		pod    *fixtures.PodBuilder
		change func(request map[string]any)
		want   []string // SidecarSets
		says   string
	}{
		"of two SidecarSets": {fixtures.Pod("web").Label("app", "web").Container("app", "app:v1"), nil, both, "A Pod in namespace default was refused: SidecarSets"},
		"with the Pod":       {fixtures.Pod("web").Label("app", "meshed").Container("mesh", "app:v1").Container("app", "app:v1"), nil, []string{"mesh"}, `A Pod in namespace default was refused: SidecarSet "mesh" brings`},
		"in a namespace that does not exist": {fixtures.Pod("web").Label("app", "web").Container("app", "app:v1"),
			func(request map[string]any) { request["namespace"] = "forged" }, both, "A Pod was refused: SidecarSets"},
		"under dry-run": {fixtures.Pod("web").Label("app", "web").Container("app", "app:v1"),
			func(request map[string]any) { request["dryRun"] = true }, nil, ""},
		"of a Pod that speaks of dry-run": {fixtures.Pod("web").Label("app", "web").Annotation("a", `"dryRun":true`).Container("app", "app:v1"), nil, both, "A Pod in namespace default"},
		"of a Pod that does not fit":      {hosted, nil, []string{"node"}, `A Pod in namespace default was refused: SidecarSet "node" does not fit this Pod: spec.containers[0].ports[0] of container "node"`},
		"of an annotation": {fixtures.Pod("web").Label("app", "hosted").Annotation("merged", "{").Container("app", "app:v1"), nil, []string{"other"},
			`A Pod in namespace default was refused: SidecarSet "other" merges JSON`},
		"that no SidecarSet has": {fixtures.Pod("web").Label("app", "other").Container("app", "app:v1"), nil, nil, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			handler := server.Handler(newInjector(pods.Options{
				Snapshot: func() *match.Snapshot { return store },
				RecordEvent: func(e events.Event) {
					got = append(got, e.About.Name)
					if !strings.HasPrefix(e.Note, tc.says) || strings.Contains(e.Note, "web") {
						t.Errorf("the Event says %q", e.Note)
					}
				},
			}).static)
			document := request(tc.pod.Obj())
			if tc.change != nil {
				tc.change(document["request"].(map[string]any))
			}
			answer := fixtures.Review(t, handler, fixtures.Encode(t, document))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Events (-want +got):\n%s\nthe answer is %v", diff, fmt.Sprint(answer.Allowed, answer.Result))
			}
		})
	}
}
