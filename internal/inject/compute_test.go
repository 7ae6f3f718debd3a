package inject_test

import (
	"errors"
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

func TestComputeOrders(t *testing.T) {
	tests := map[string]struct {
		sets             []*fixtures.SidecarSetBuilder
		init, containers []string
	}{
		"containers stand before the app by default": {
			[]*fixtures.SidecarSetBuilder{log()},
			[]string{"migrate"}, []string{"log", "app"},
		},
		"after the app when asked": {
			[]*fixtures.SidecarSetBuilder{log().AfterApp()},
			[]string{"migrate"}, []string{"app", "log"},
		},
		"init containers stand after the Pod's by default": {
			[]*fixtures.SidecarSetBuilder{fixtures.SidecarSet("s").InitContainer("a", "i:1").Native("b", "i:1")},
			[]string{"migrate", "a", "b"}, []string{"app"},
		},
		"podInjectPolicy works for init containers, too (T13)": {
			[]*fixtures.SidecarSetBuilder{fixtures.SidecarSet("s").InitContainer("a", "i:1").BeforeApp()},
			[]string{"a", "migrate"}, []string{"app"},
		},
		"containers keep the order of their spec": {
			[]*fixtures.SidecarSetBuilder{fixtures.SidecarSet("s").Container("z", "i:1").Container("m", "i:1").AfterApp().Container("a", "i:1")},
			[]string{"migrate"}, []string{"z", "a", "app", "m"},
		},
		"init containers are sorted by name over all SidecarSets": {
			[]*fixtures.SidecarSetBuilder{
				fixtures.SidecarSet("1").InitContainer("d", "i:1").InitContainer("b", "i:1").BeforeApp(),
				fixtures.SidecarSet("2").InitContainer("c", "i:1").InitContainer("a", "i:1").BeforeApp(),
			},
			[]string{"a", "b", "migrate", "c", "d"}, []string{"app"},
		},
		"SidecarSets come in the order of their names (T12)": {
			[]*fixtures.SidecarSetBuilder{
				fixtures.SidecarSet("c").Container("1", "i:1"), fixtures.SidecarSet("a").Container("3", "i:1"), fixtures.SidecarSet("b").Container("2", "i:1"),
			},
			[]string{"migrate"}, []string{"3", "2", "1", "app"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := app().Obj()
			got, _ := injected(t, fixtures.Input(t, pod, objects(tc.sets)...), pod)
			if diff := cmp.Diff(tc.init, list(got, "initContainers")); diff != "" {
				t.Errorf("init containers (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.containers, list(got, "containers")); diff != "" {
				t.Errorf("containers (-want +got):\n%s", diff)
			}
		})
	}
}

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

func objects(builders []*fixtures.SidecarSetBuilder) []map[string]any {
	out := make([]map[string]any, len(builders))
	for i, b := range builders {
		out[i] = b.Map()
	}
	return out
}

func TestComputeSkips(t *testing.T) {
	canary := func() *fixtures.SidecarSetBuilder {
		return fixtures.SidecarSet("log-next").Container("log", "log:v2").CanaryOf("log")
	}
	tests := map[string]struct {
		sets     []*fixtures.SidecarSetBuilder
		pod      *fixtures.PodBuilder
		injected []string
		skipped  []inject.Skip
	}{
		"one that is paused": {
			sets:    []*fixtures.SidecarSetBuilder{log().Paused()},
			skipped: []inject.Skip{{SidecarSet: "log", Reason: inject.SkipPaused}},
		},
		"one that is paused does not conflict": {
			sets:     []*fixtures.SidecarSetBuilder{log(), fixtures.SidecarSet("other").Container("log", "x:1").Paused()},
			injected: []string{"log"},
			skipped:  []inject.Skip{{SidecarSet: "other", Reason: inject.SkipPaused}},
		},
		"the base of a canary": {
			sets:     []*fixtures.SidecarSetBuilder{log(), canary()},
			injected: []string{"log-next"},
			skipped:  []inject.Skip{{SidecarSet: "log", Reason: inject.SkipCanary, By: "log-next"}},
		},
		"only the canary when that is paused": {
			sets:     []*fixtures.SidecarSetBuilder{log(), canary().Paused()},
			injected: []string{"log"},
			skipped:  []inject.Skip{{SidecarSet: "log-next", Reason: inject.SkipPaused}},
		},
		"nothing for a canary that is not marked exactly true": {
			sets:     []*fixtures.SidecarSetBuilder{log(), fixtures.SidecarSet("next").Container("x", "x:1").CanaryOf("log").Annotation(appsv1beta1.AnnotationCanary, "True")},
			injected: []string{"log", "next"},
		},
		"nothing for a canary without a base": {
			sets:     []*fixtures.SidecarSetBuilder{log(), fixtures.SidecarSet("next").Container("x", "x:1").CanaryOf("")},
			injected: []string{"log", "next"},
		},
		"the base once, both canaries go in": {
			sets: []*fixtures.SidecarSetBuilder{
				log(), canary(), fixtures.SidecarSet("log-other").Container("other", "log:v3").CanaryOf("log"),
			},
			injected: []string{"log-next", "log-other"},
			skipped:  []inject.Skip{{SidecarSet: "log", Reason: inject.SkipCanary, By: "log-next"}},
		},
		"a canary that is itself a base, and its own base": {
			sets: []*fixtures.SidecarSetBuilder{
				log(), canary(), fixtures.SidecarSet("log-last").Container("log", "log:v3").CanaryOf("log-next"),
			},
			injected: []string{"log-last"},
			skipped: []inject.Skip{
				{SidecarSet: "log", Reason: inject.SkipCanary, By: "log-next"},
				{SidecarSet: "log-next", Reason: inject.SkipCanary, By: "log-last"},
			},
		},
		"everything for a mirror Pod (T36)": {
			sets:    []*fixtures.SidecarSetBuilder{log()},
			pod:     app().Annotation("kubernetes.io/config.mirror", "1"),
			skipped: []inject.Skip{{SidecarSet: "log", Reason: inject.SkipMirrorPod}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.pod == nil {
				tc.pod = app()
			}
			pod := tc.pod.Obj()
			got, plan := injected(t, fixtures.Input(t, pod, objects(tc.sets)...), pod)
			if diff := cmp.Diff(tc.injected, plan.Injected); diff != "" {
				t.Errorf("injected (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.skipped, plan.Skipped); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
			if list := annotation(got, appsv1beta1.AnnotationInjectedList); list != strings.Join(tc.injected, ",") {
				t.Errorf("injected list = %q", list)
			}
			if plan.Empty() != (len(tc.injected) == 0) {
				t.Errorf("Empty() = %v", plan.Empty())
			}
		})
	}
}

func annotation(pod map[string]any, key string) string {
	annotations, _ := pod["metadata"].(map[string]any)["annotations"].(map[string]any)
	value, _ := annotations[key].(string)
	return value
}

func TestComputeConflicts(t *testing.T) {
	tests := map[string]struct {
		pod  *fixtures.PodBuilder
		sets []*fixtures.SidecarSetBuilder
		want inject.ConflictError
	}{
		"an app container has the name (T11)": {
			app(), []*fixtures.SidecarSetBuilder{fixtures.SidecarSet("s").Container("app", "x:1")},
			inject.ConflictError{Kind: "container", Name: "app", First: "s", PodKind: "container"},
		},
		"IS_INJECTED with another value is the user's container": {
			app().Container("log", "log:v0").Env("IS_INJECTED", "false"), []*fixtures.SidecarSetBuilder{log()},
			inject.ConflictError{Kind: "container", Name: "log", First: "log", PodKind: "container"},
		},
		"only the first IS_INJECTED counts": {
			app().Container("log", "log:v0").Env("IS_INJECTED", "no").Env("IS_INJECTED", "true"), []*fixtures.SidecarSetBuilder{log()},
			inject.ConflictError{Kind: "container", Name: "log", First: "log", PodKind: "container"},
		},
		"an init container has the container's name": {
			app(), []*fixtures.SidecarSetBuilder{fixtures.SidecarSet("s").Container("migrate", "x:1")},
			inject.ConflictError{Kind: "container", Name: "migrate", First: "s", PodKind: "init container"},
		},
		"a container has the init container's name": {
			app(), []*fixtures.SidecarSetBuilder{fixtures.SidecarSet("s").Native("app", "x:1")},
			inject.ConflictError{Kind: "init container", Name: "app", First: "s", PodKind: "container"},
		},
		"a sidecar that moved to the other list": {
			app().Container("log", "log:v1").Injected(), []*fixtures.SidecarSetBuilder{fixtures.SidecarSet("s").Native("log", "log:v1")},
			inject.ConflictError{Kind: "init container", Name: "log", First: "s", PodKind: "container"},
		},
		"two SidecarSets (A 9.1)": {
			app(), []*fixtures.SidecarSetBuilder{fixtures.SidecarSet("b").Container("log", "x:1"), fixtures.SidecarSet("a").Container("log", "x:1")},
			inject.ConflictError{Kind: "container", Name: "log", First: "a", Second: "b"},
		},
		"two SidecarSets in different lists": {
			app(), []*fixtures.SidecarSetBuilder{fixtures.SidecarSet("b").InitContainer("log", "x:1"), fixtures.SidecarSet("a").Container("log", "x:1")},
			inject.ConflictError{Kind: "container", Name: "log", First: "a", Second: "b"},
		},
		"one SidecarSet by itself": {
			app(), []*fixtures.SidecarSetBuilder{fixtures.SidecarSet("a").InitContainer("log", "x:1").Container("log", "x:1")},
			inject.ConflictError{Kind: "container", Name: "log", First: "a", Second: "a"},
		},
		"one SidecarSet by itself next to another": {
			app(), []*fixtures.SidecarSetBuilder{fixtures.SidecarSet("a").Container("log", "x:1").Container("log", "x:1"), fixtures.SidecarSet("b").Container("b", "x:1")},
			inject.ConflictError{Kind: "container", Name: "log", First: "a", Second: "a"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			plan, err := inject.Compute(fixtures.Input(t, tc.pod.Obj(), objects(tc.sets)...))
			var conflict *inject.ConflictError
			if !errors.As(err, &conflict) {
				t.Fatalf("error = %v, want a ConflictError", err)
			}
			if diff := cmp.Diff(tc.want, *conflict); diff != "" {
				t.Errorf("conflict (-want +got):\n%s", diff)
			}
			for _, word := range []string{tc.want.First, tc.want.Second, tc.want.Name, "rename"} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("message lacks %q: %v", word, err)
				}
			}
			if !plan.Empty() {
				t.Error("a plan came with the error")
			}
		})
	}
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
		set    *fixtures.SidecarSetBuilder // that meets a Pod which carries full()
		edit   func(pod map[string]any)
		verbs  []string
		stamps bool // the record is written anew
	}{
		"the same content adds nothing": {set: full()},
		"another order of the Pod's containers adds nothing": {set: full(), edit: func(pod map[string]any) {
			slices.Reverse(items(pod, "containers"))
		}},
		"what the API server fills in is not compared": {set: full(), edit: func(pod map[string]any) {
			items(pod, "containers")[0].(map[string]any)["terminationMessagePath"] = "/elsewhere"
		}},
		"new content replaces in place and keeps the order": {
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

func TestComputeAddsASecondSidecarSetToAnInjectedPod(t *testing.T) {
	pod := sent(t, log())
	in := fixtures.Input(t, pod, log().Map(), fixtures.SidecarSet("mesh").Container("mesh", "mesh:v1").Map())
	in.Now = fixtures.Now.Add(time.Hour)
	got, plan := injected(t, in, pod)
	if diff := cmp.Diff([]string{"log", "mesh", "app"}, list(got, "containers")); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]inject.Skip{{SidecarSet: "log", Reason: inject.SkipInjected}}, plan.Skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	hashes := podstate.ParseHashes(annotation(got, appsv1beta1.AnnotationHash))
	for name, want := range map[string]time.Time{"log": fixtures.Now, "mesh": in.Now} {
		if at := hashes.UpdatedAt(name); !at.Equal(want) {
			t.Errorf("%s was recorded at %v, want %v", name, at, want)
		}
	}
	if list := annotation(got, appsv1beta1.AnnotationInjectedList); list != "log,mesh" {
		t.Errorf("injected list = %q", list)
	}
}

func TestTheFirstOfTwoVolumesWithOneNameIsInjected(t *testing.T) {
	a := fixtures.SidecarSet("a").Container("a", "a:1").Mount("v", "/v").VolumeOf("v", "emptyDir", map[string]any{})
	b := fixtures.SidecarSet("b").Container("b", "b:1").Mount("v", "/v").VolumeOf("v", "emptyDir", map[string]any{"medium": "Memory"})
	same := fixtures.SidecarSet("c").Container("c", "c:1").Mount("v", "/v").VolumeOf("v", "emptyDir", map[string]any{})
	pod := app().Obj()
	got, _ := injected(t, fixtures.Input(t, pod, a.Map(), b.Map(), same.Map()), pod)
	if diff := cmp.Diff([]string{"data", "v"}, list(got, "volumes")); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	if volume := marshal(t, items(got, "volumes")[1]); volume != `{"emptyDir":{},"name":"v"}` {
		t.Errorf("volume %s, want that of a", volume)
	}
}
