package inject_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
)

func TestPodsThatDoNotFitTheirSidecarsAreRefused(t *testing.T) {
	for _, fit := range fixtures.Fits {
		t.Run(fit.Name, func(t *testing.T) {
			pod := fit.PodWith(map[string]any{"name": "web", "labels": map[string]any{"app": "web"}})
			set := fit.SidecarSet("owner")
			plan, err := inject.Compute(fixtures.Input(t, pod, set))
			if len(fit.Says) > 0 {
				wantMisfit(t, err, append(fit.Says, `SidecarSet "owner" does not fit this Pod`, "selector")...)
				return
			}
			if err != nil {
				t.Fatalf("Compute: %v", err)
			}
			// Nothing is checked of a Pod that has the sidecars, whatever it has become.
			pod = fixtures.Apply(t, plan, pod)
			pod["spec"].(map[string]any)["hostNetwork"] = true
			pod["spec"].(map[string]any)["os"] = map[string]any{"name": "windows"}
			if again, err := inject.Compute(fixtures.Input(t, pod, set)); err != nil || !again.Empty() {
				t.Errorf("a second call: %v, %s", err, again.AppendPatch(nil))
			}
		})
	}
}

func wantMisfit(t *testing.T, err error, says ...string) {
	t.Helper()
	misfit, is := errors.AsType[*inject.FitError](err)
	if !is {
		t.Fatalf("error %v, want a *FitError", err)
	}
	if got := misfit.SidecarSets(); got[0] != misfit.SidecarSet {
		t.Errorf("it names %v", got)
	}
	for _, part := range says {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %v\nwant one that says %q", err, part)
		}
	}
}

func nodePort(number int) []any {
	return []any{map[string]any{"containerPort": number, "hostPort": number}}
}

// What API servers refuse in the Pod itself is left to them.
func TestAPodThatIsWrongByItselfIsNotRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		pod *fixtures.PodBuilder
		set *fixtures.SidecarSetBuilder
	}{
		"a port of the node twice in the Pod": {app().With("ports", append(nodePort(80), nodePort(80)...)), log().With("ports", nodePort(81))},
		"requests of the Pod that its containers exceed": {
			app().With("resources", map[string]any{"requests": map[string]any{"cpu": "2"}}).Spec("resources", map[string]any{"requests": map[string]any{"cpu": "1"}}),
			log().With("resources", map[string]any{"requests": map[string]any{"cpu": "1"}}),
		},
	} {
		if _, err := inject.Compute(fixtures.Input(t, tc.pod.Obj(), tc.set.Map())); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An enforced SidecarSet replaces a directory of its name, but not the data of the app.
func TestEnforcedVolumesReplaceNoData(t *testing.T) {
	claim := func(name string) map[string]any { return map[string]any{"claimName": name} }
	tests := []struct {
		was, is   string
		from, by  map[string]any
		isRefused bool
	}{
		{was: "persistentVolumeClaim", from: claim("app"), is: "emptyDir", isRefused: true},
		{was: "persistentVolumeClaim", from: claim("app"), is: "persistentVolumeClaim", by: claim("side"), isRefused: true},
		{was: "persistentVolumeClaim", from: claim("app"), is: "persistentVolumeClaim", by: claim("app")},
		{was: "ephemeral", is: "persistentVolumeClaim", by: claim("side"), isRefused: true},
		{was: "secret", is: "emptyDir", isRefused: true},
		{was: "secret", from: map[string]any{"secretName": "app"}, is: "secret", by: map[string]any{"secretName": "side"}},
		{was: "configMap", is: "secret", isRefused: true},
		{was: "projected", is: "emptyDir", isRefused: true},
		{was: "csi", is: "emptyDir", isRefused: true},
		{was: "emptyDir", is: "configMap"},
		{was: "hostPath", is: "emptyDir"},
	}
	for _, tc := range tests {
		t.Run(fmt.Sprint(tc.was, tc.from, " by ", tc.is, tc.by), func(t *testing.T) {
			if tc.from == nil {
				tc.from = map[string]any{}
			}
			if tc.by == nil {
				tc.by = map[string]any{}
			}
			set := fixtures.SidecarSet("backup").Container("backup", "backup:v1").Mount("data", "/data").VolumeOf("data", tc.is, tc.by)
			pod := app().Spec("volumes", []any{map[string]any{"name": "data", tc.was: tc.from}}).Obj()
			_, err := inject.Compute(fixtures.Input(t, pod, enforced(set)))
			if tc.isRefused {
				wantMisfit(t, err, `SidecarSet "backup"`, `volume "data"`, tc.was, tc.is, "sidecarset.io/enforce", "another name")
			} else if err != nil {
				t.Errorf("Compute: %v", err)
			}
			if _, err := inject.Compute(fixtures.Input(t, pod, set.Annotation("sidecarset.io/enforce", "false").Map())); err != nil {
				t.Errorf("without the annotation: %v", err)
			}
		})
	}
}

// A policy computes with the budget of the Pod where the chosen containers have none.
func TestResourcesPolicyReadsTheResourcesOfThePod(t *testing.T) {
	const policy = `, resourcesPolicy: {targetContainersMode: sum, resourcesExpr: {requests: {cpu: "cpu*10%", memory: "memory*10%"}, limits: {memory: "memory*50%"}}}}]`
	tests := map[string]struct{ pod, want string }{
		"the container has nothing": {"resources: {requests: {cpu: 1, memory: 1G}, limits: {cpu: 2, memory: 2G}}", `{"limits":{"memory":"1G"},"requests":{"cpu":"100m","memory":"100M"}}`},
		"the Pod has limits":        {"resources: {limits: {cpu: 2, memory: 2G}}", `{"limits":{"memory":"1G"},"requests":{"cpu":"200m","memory":"200M"}}`},
		"the Pod has one of them":   {"resources: {requests: {cpu: 1}}", `{"requests":{"cpu":"100m","memory":"0"}}`},
		"the container has one of them": {`resources: {requests: {cpu: 1, memory: 1G}}
containers: [{name: app, image: "app:v1", resources: {requests: {cpu: 200m}}}]`, `{"requests":{"cpu":"20m","memory":"100M"}}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			fit := fixtures.Fit{Pod: tc.pod, Set: `containers: [{name: side, image: "side:v1"` + policy}
			pod := fit.PodWith(map[string]any{"name": "web", "labels": map[string]any{"app": "web"}})
			got, _ := injected(t, fixtures.Input(t, pod, fit.SidecarSet("owner")), pod)
			if diff := cmp.Diff(tc.want, marshal(t, containerOf(t, got, "side")["resources"])); diff != "" {
				t.Errorf("resources (-want +got):\n%s", diff)
			}
		})
	}
}
