package inject_test

import (
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

// injected computes and applies; the plan's renderings are checked on the way.
func injected(t *testing.T, in inject.Input, pod map[string]any) (map[string]any, inject.Plan) {
	t.Helper()
	plan, err := inject.Compute(in)
	if err != nil {
		t.Fatalf("Compute: %v", err)
	}
	return apply(t, plan, pod), plan
}

// list returns the names in a list of the Pod's spec.
func list(pod map[string]any, name string) []string {
	out := []string{}
	items, _ := pod["spec"].(map[string]any)[name].([]any)
	for _, item := range items {
		n, _ := item.(map[string]any)["name"].(string)
		out = append(out, n)
	}
	return out
}

// app is a Pod with an init container, a container and a volume.
func app() *fixtures.PodBuilder {
	return fixtures.Pod("web").InitContainer("migrate", "app:v1").Container("app", "app:v1").Volume("data")
}

func log() *fixtures.SidecarSetBuilder { return fixtures.SidecarSet("log").Container("log", "log:v1") }

// A SidecarSet that a later call injects (another replica answered the first one,
// or knew less) is where it would be if one call had injected all.
func TestComputeOrdersWhatALaterCallAdds(t *testing.T) {
	sets := func(which string) []map[string]any {
		all := map[rune]*fixtures.SidecarSetBuilder{
			'a': fixtures.SidecarSet("a").Container("a-front", "i:1").Container("a-back", "i:1").AfterApp().InitContainer("y", "i:1").Native("n", "i:1").BeforeApp(),
			'b': fixtures.SidecarSet("b").Container("b-front", "i:1").Container("b-back", "i:1").AfterApp().InitContainer("x", "i:1").Native("m", "i:1").BeforeApp(),
			'c': fixtures.SidecarSet("c").Container("c-front", "i:1").Container("c-back", "i:1").AfterApp().InitContainer("z", "i:1").Native("o", "i:1").BeforeApp(),
		}
		var out []map[string]any
		for _, name := range which {
			out = append(out, all[name].Map())
		}
		return out
	}
	for _, calls := range [][]string{{"abc"}, {"c", "bc", "abc"}, {"a", "ac", "abc"}, {"b", "abc"}, {"ac", "abc"}, {"b", "bc", "abc"}} {
		t.Run(strings.Join(calls, " then "), func(t *testing.T) {
			pod := app().Obj()
			for _, call := range calls {
				pod, _ = injected(t, fixtures.Input(t, pod, sets(call)...), pod)
			}
			if diff := cmp.Diff([]string{"m", "n", "o", "migrate", "x", "y", "z"}, list(pod, "initContainers")); diff != "" {
				t.Errorf("init containers (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"a-front", "b-front", "c-front", "app", "a-back", "b-back", "c-back"}, list(pod, "containers")); diff != "" {
				t.Errorf("containers (-want +got):\n%s", diff)
			}
		})
	}
}

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

func annotation(pod map[string]any, key string) string {
	annotations, _ := pod["metadata"].(map[string]any)["annotations"].(map[string]any)
	value, _ := annotations[key].(string)
	return value
}

// sent is what the Pod's annotations say after log() went in.
func sent(t *testing.T, set *fixtures.SidecarSetBuilder) (pod map[string]any) {
	t.Helper()
	pod = app().Obj()
	out, _ := injected(t, fixtures.Input(t, pod, set.Map()), pod)
	return out
}

func TestComputeOnPodsThatAreAlreadyInjected(t *testing.T) {
	full := func() *fixtures.SidecarSetBuilder {
		return fixtures.SidecarSet("log").Native("proxy", "proxy:v1").InitContainer("prepare", "p:v1").Container("log", "log:v1").Mount("log", "/log").Volume("log")
	}
	tests := map[string]struct {
		set    *fixtures.SidecarSetBuilder // that meets a Pod which has full()
		edit   func(pod map[string]any)
		verbs  []string
		stamps bool // the record is written again
	}{
		"the same revision adds nothing": {set: full()},
		"another order of the Pod's containers adds nothing": {set: full(), edit: func(pod map[string]any) {
			slices.Reverse(items(pod, "containers"))
		}},
		"what the API server fills in is not compared": {set: full(), edit: func(pod map[string]any) {
			items(pod, "containers")[0].(map[string]any)["terminationMessagePath"] = "/elsewhere"
		}},
		"a new revision replaces in place and keeps the order": {
			set:    fixtures.SidecarSet("log").Native("proxy", "proxy:v2").InitContainer("prepare", "p:v1").Container("log", "log:v1").Mount("log", "/log").Volume("log"),
			verbs:  []string{"replace /spec/initContainers/1", "replace /spec/initContainers/2", "replace /spec/containers/0"},
			stamps: true,
		},
		"another image than the record says is replaced": {
			set: full(), edit: func(pod map[string]any) { items(pod, "containers")[0].(map[string]any)["image"] = "evil:v1" },
			verbs: []string{"replace /spec/containers/0"}, stamps: true,
		},
		"a container that is missing comes back": {
			set: full(), edit: func(pod map[string]any) { drop(pod, "containers", 0) },
			verbs: []string{"add /spec/containers/0"}, stamps: true,
		},
		"an init container that is missing comes back": {
			set: full(), edit: func(pod map[string]any) { drop(pod, "initContainers", 1) },
			verbs: []string{"add /spec/initContainers/1"}, stamps: true,
		},
		"without a record all is replaced": {
			set: full(), edit: func(pod map[string]any) {
				delete(pod["metadata"].(map[string]any), "annotations")
			},
			verbs:  []string{"replace /spec/initContainers/1", "replace /spec/initContainers/2", "replace /spec/containers/0"},
			stamps: true,
		},
		"a name that is missing from the list is put back, nothing else": {
			set: full(), edit: func(pod map[string]any) {
				delete(pod["metadata"].(map[string]any)["annotations"].(map[string]any), appsv1beta1.AnnotationInjectedList)
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := sent(t, full())
			if tc.edit != nil {
				tc.edit(pod)
			}
			before := podstate.ParseHashes(annotation(pod, appsv1beta1.AnnotationHash))
			in := fixtures.Input(t, pod, tc.set.Map())
			in.Now = fixtures.Now.Add(time.Hour)
			got, plan := injected(t, in, pod)

			var verbs []string
			for _, op := range operations(t, plan) {
				if strings.HasPrefix(op.Path, "/spec/") {
					verbs = append(verbs, op.Op+" "+op.Path)
				}
			}
			if diff := cmp.Diff(tc.verbs, verbs); diff != "" {
				t.Errorf("operations on spec (-want +got):\n%s", diff)
			}
			after := podstate.ParseHashes(annotation(got, appsv1beta1.AnnotationHash))
			if stamped := !after.UpdatedAt("log").Equal(before.UpdatedAt("log")); stamped != tc.stamps {
				t.Errorf("record written anew: %v, want %v", stamped, tc.stamps)
			}
			if list := annotation(got, appsv1beta1.AnnotationInjectedList); list != "log" {
				t.Errorf("injected list = %q", list)
			}
			wantNames := []string{"log", "app"}
			if name == "another order of the Pod's containers adds nothing" {
				wantNames = []string{"app", "log"}
			}
			if diff := cmp.Diff(wantNames, list(got, "containers")); diff != "" {
				t.Errorf("containers (-want +got):\n%s", diff)
			}
		})
	}
}

func items(pod map[string]any, name string) []any {
	return pod["spec"].(map[string]any)[name].([]any)
}

func drop(pod map[string]any, name string, i int) {
	pod["spec"].(map[string]any)[name] = slices.Delete(items(pod, name), i, i+1)
}

func objects(builders []*fixtures.SidecarSetBuilder) []map[string]any {
	out := make([]map[string]any, len(builders))
	for i, b := range builders {
		out[i] = b.Map()
	}
	return out
}
