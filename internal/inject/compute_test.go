package inject_test

import (
	gocmp "cmp"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/podstate"
)

var (
	enabled = map[string]any{"type": "enabled"}
	hot     = map[string]any{"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:1"}
	halfCPU = map[string]any{"targetContainersMode": "sum", "resourcesExpr": map[string]any{"limits": map[string]any{"cpu": "cpu/2"}}}
)

// transferOf copies variables of one container.
func transferOf(container string, names ...any) []any {
	return []any{map[string]any{"sourceContainerName": container, "envNames": names}}
}

func one() *fixtures.SidecarSetBuilder { return fixtures.SidecarSet("s").Container("c", "c:1") }

// injected computes and applies; the plan's renderings are checked on the way.
func injected(t *testing.T, in inject.Input, pod map[string]any) (map[string]any, inject.Plan) {
	t.Helper()
	plan, err := inject.Compute(in)
	if err != nil {
		t.Fatalf("Compute: %v", err)
	}
	return fixtures.Apply(t, plan, pod), plan
}

// list returns the names in a list of the Pod's spec.
func list(pod map[string]any, name string) []string {
	out := []string{}
	for _, item := range items(pod, name) {
		n, _ := item.(map[string]any)["name"].(string)
		out = append(out, n)
	}
	return out
}

func items(pod map[string]any, list string) []any {
	all, _ := pod["spec"].(map[string]any)[list].([]any)
	return all
}

func drop(pod map[string]any, list string, i int) {
	pod["spec"].(map[string]any)[list] = slices.Delete(items(pod, list), i, i+1)
}

// allContainers are a Pod's init containers and containers.
func allContainers(pod map[string]any) (all []map[string]any) {
	for _, c := range slices.Concat(items(pod, "initContainers"), items(pod, "containers")) {
		all = append(all, c.(map[string]any))
	}
	return all
}

func containerOf(t *testing.T, pod map[string]any, name string) map[string]any {
	t.Helper()
	all := allContainers(pod)
	i := slices.IndexFunc(all, func(c map[string]any) bool { return c["name"] == name })
	if i < 0 {
		t.Fatalf("the Pod has no container %s", name)
	}
	return all[i]
}

// images are those of all containers.
func images(pod map[string]any) map[string]string {
	out := map[string]string{}
	for _, c := range allContainers(pod) {
		out[c["name"].(string)] = c["image"].(string)
	}
	return out
}

func annotations(pod map[string]any) map[string]any {
	all, _ := pod["metadata"].(map[string]any)["annotations"].(map[string]any)
	return all
}

func annotation(pod map[string]any, key string) string {
	value, _ := annotations(pod)[key].(string)
	return value
}

// app is a Pod with an init container, a container and a volume.
func app() *fixtures.PodBuilder {
	return fixtures.Pod("web").InitContainer("migrate", "app:v1").Container("app", "app:v1").Volume("data")
}

func log() *fixtures.SidecarSetBuilder { return fixtures.SidecarSet("log").Container("log", "log:v1") }

// What the user, or another webhook, has put before our sidecars stays before them.
func TestComputeOrdersOnlyItsOwnSidecars(t *testing.T) {
	pod := app().Obj()
	pod, _ = injected(t, fixtures.Input(t, pod, fixtures.SidecarSet("b").Container("b", "i:1").Map()), pod)
	spec := pod["spec"].(map[string]any)
	spec["containers"] = append([]any{map[string]any{"name": "first", "image": "i:1"}}, spec["containers"].([]any)...)
	both := []map[string]any{fixtures.SidecarSet("b").Container("b", "i:1").Map(), fixtures.SidecarSet("c").Container("c", "i:1").Map()}
	pod, _ = injected(t, fixtures.Input(t, pod, both...), pod)
	if diff := cmp.Diff([]string{"c", "first", "b", "app"}, list(pod, "containers")); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
}

// The golden cases show what becomes of the Pods.
func TestComputeSaysWhomItSkips(t *testing.T) {
	next := fixtures.SidecarSet("log-next").Container("log", "log:v2").CanaryOf("log").Map()
	last := fixtures.SidecarSet("log-last").Container("log", "log:v3").CanaryOf("log-next").Map()
	mirrored := app().Annotation("kubernetes.io/config.mirror", "1")
	tests := map[string]struct {
		pod  *fixtures.PodBuilder
		sets []map[string]any
		want []inject.Skip
	}{
		"one that is paused":      {app(), []map[string]any{log().Paused().Map()}, []inject.Skip{{SidecarSet: "log", Reason: inject.SkipPaused}}},
		"all for a mirror Pod":    {mirrored, []map[string]any{log().Map()}, []inject.Skip{{SidecarSet: "log", Reason: inject.SkipMirrorPod}}},
		"the base of each canary": {app(), []map[string]any{log().Map(), next, last}, []inject.Skip{{SidecarSet: "log", Reason: inject.SkipCanary, By: "log-next"}, {SidecarSet: "log-next", Reason: inject.SkipCanary, By: "log-last"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, plan := injected(t, fixtures.Input(t, tc.pod.Obj(), tc.sets...), tc.pod.Obj())
			if diff := cmp.Diff(tc.want, plan.Skipped); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
		})
	}
}

// The record is written again exactly if the Pod's spec changes.
func TestComputeOnPodsThatAreAlreadyInjected(t *testing.T) {
	full := func(proxy string) map[string]any {
		return log().Mount("log", "/log").Volume("log").Native("proxy", proxy).InitContainer("prepare", "p:v1").Map()
	}
	const all = "replace /spec/initContainers/1, replace /spec/initContainers/2, replace /spec/containers/0"
	tests := map[string]struct {
		proxy string // the image that the SidecarSet has now; "": the one that the Pod has
		edit  func(pod map[string]any)
		verbs string // of the operations on the Pod's spec
	}{
		"the same revision adds nothing":                     {},
		"another order of the Pod's containers adds nothing": {edit: func(pod map[string]any) { slices.Reverse(items(pod, "containers")) }},
		"what the API server fills in is not compared": {edit: func(pod map[string]any) {
			containerOf(t, pod, "log")["terminationMessagePath"] = "/elsewhere"
		}},
		"a new revision replaces in place and keeps the order": {proxy: "proxy:v2", verbs: all},
		"another image than the record says is replaced": {
			edit: func(pod map[string]any) { containerOf(t, pod, "log")["image"] = "evil:v1" }, verbs: "replace /spec/containers/0",
		},
		"a container that is missing comes back": {
			edit: func(pod map[string]any) { drop(pod, "containers", 0) }, verbs: "add /spec/containers/0",
		},
		"an init container that is missing comes back": {
			edit: func(pod map[string]any) { drop(pod, "initContainers", 1) }, verbs: "add /spec/initContainers/1",
		},
		"without a record all is replaced": {edit: func(pod map[string]any) { clear(annotations(pod)) }, verbs: all},
		"a name that is missing from the list is put back, nothing else": {
			edit: func(pod map[string]any) { delete(annotations(pod), appsv1beta1.AnnotationInjectedList) },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := app().Obj()
			pod, _ = injected(t, fixtures.Input(t, pod, full("proxy:v1")), pod)
			if tc.edit != nil {
				tc.edit(pod)
			}
			before := podstate.ParseHashes(annotation(pod, appsv1beta1.AnnotationHash))
			in := fixtures.Input(t, pod, full(gocmp.Or(tc.proxy, "proxy:v1")))
			in.Now = fixtures.Now.Add(time.Hour)
			got, plan := injected(t, in, pod)

			var operations []struct{ Op, Path string }
			if !plan.Empty() {
				if err := json.Unmarshal(plan.AppendPatch(nil), &operations); err != nil {
					t.Fatal(err)
				}
			}
			var verbs []string
			for _, op := range operations {
				if strings.HasPrefix(op.Path, "/spec/") {
					verbs = append(verbs, op.Op+" "+op.Path)
				}
			}
			if diff := cmp.Diff(tc.verbs, strings.Join(verbs, ", ")); diff != "" {
				t.Errorf("operations on spec (-want +got):\n%s", diff)
			}
			after := podstate.ParseHashes(annotation(got, appsv1beta1.AnnotationHash))
			if stamped := !after.UpdatedAt("log").Equal(before.UpdatedAt("log")); stamped != (tc.verbs != "") {
				t.Errorf("record written again: %v", stamped)
			}
			if list := annotation(got, appsv1beta1.AnnotationInjectedList); list != "log" {
				t.Errorf("injected list = %q", list)
			}
		})
	}
}

func objects(builders []*fixtures.SidecarSetBuilder) []map[string]any {
	out := make([]map[string]any, len(builders))
	for i, b := range builders {
		out[i] = b.Map()
	}
	return out
}
