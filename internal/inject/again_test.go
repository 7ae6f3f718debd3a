package inject_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/test/rounds"
)

// toMirror rewrites all images of a Pod, as another webhook does between two calls.
func toMirror(pod map[string]any) {
	for _, c := range allContainers(pod) {
		c["image"] = "mirror/" + c["image"].(string)
	}
}

// Between two calls of one admission, another webhook has rewritten images. They stay where the
// Pod's record shows that the sidecars are of this admission and of this revision.
func TestTheSecondCallLeavesRewrittenImages(t *testing.T) {
	const mirror = "mirror/"
	revision := func(image string) *fixtures.SidecarSetBuilder {
		return mesh().Container("mesh", image).Container("pair", "pair:v1").With("upgradeStrategy", hot).Native("proxy", "proxy:v1").InitContainer("setup", "setup:v1")
	}
	own := func(mesh string) map[string]string {
		return map[string]string{"mesh": mesh, "pair-1": "pair:v1", "pair-2": "empty:1", "proxy": "proxy:v1", "setup": "setup:v1"}
	}
	tests := map[string]struct {
		second *fixtures.SidecarSetBuilder // nil: the same revision
		after  time.Duration
		edit   func(pod map[string]any)
		images map[string]string // of the sidecars; others have those of the mirror
	}{
		"a second later":                     {after: time.Second},
		"by a replica whose clock is behind": {after: -30 * time.Second},
		"another one has removed a container": {
			edit:   func(pod map[string]any) { drop(pod, "containers", slices.Index(list(pod, "containers"), "mesh")) },
			images: map[string]string{"mesh": "mesh:v1"},
		},
		"another one has made a container its own": {
			edit:   func(pod map[string]any) { drop(pod, "containers", slices.Index(list(pod, "containers"), "pair-1")) },
			images: map[string]string{"pair-1": "pair:v1"},
		},
		"the record is of an earlier admission": {
			after: time.Hour, images: own("mesh:v1"),
		},
		"the record is of a day that has not come": {
			after: -24 * time.Hour, images: own("mesh:v1"),
		},
		"the revision has changed": {
			second: revision("mesh:v2"), images: own("mesh:v2"),
		},
		"the SidecarSet is enforced": {
			second: revision("mesh:v1").Annotation(appsv1beta1.AnnotationEnforce, "true"), images: own("mesh:v1"),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := app().Obj()
			pod, _ = injected(t, fixtures.Input(t, pod, revision("mesh:v1").Map()), pod)
			toMirror(pod)
			if tc.edit != nil {
				tc.edit(pod)
			}
			second := revision("mesh:v1")
			if tc.second != nil {
				second = tc.second
			}
			in := fixtures.Input(t, pod, second.Map())
			in.Now = in.Now.Add(tc.after)
			got, plan := injected(t, in, pod)
			want := map[string]string{
				"app": mirror + "app:v1", "migrate": mirror + "app:v1", "mesh": mirror + "mesh:v1", "pair-1": mirror + "pair:v1", "pair-2": mirror + "empty:1",
				"proxy": mirror + "proxy:v1", "setup": mirror + "setup:v1",
			}
			maps.Copy(want, tc.images)
			if diff := cmp.Diff(want, images(got)); diff != "" {
				t.Errorf("images (-want +got):\n%s", diff)
			}
			if tc.images == nil && !plan.Empty() {
				t.Errorf("the plan is %s, want none", plan.AppendPatch(nil))
			}
		})
	}
}

// What another webhook has added to the app's containers after the first call is taken over by
// the second one. The sidecars stay as they are otherwise.
func TestTheSecondCallTakesOverWhatAnotherWebhookAdded(t *testing.T) {
	set := func() *fixtures.SidecarSetBuilder {
		return log().With("shareVolumePolicy", enabled).With("shareVolumeDevicePolicy", enabled).With("transferEnv", transferOf("app", "LATE", "ABSENT")).
			With("resourcesPolicy", map[string]any{
				"targetContainersMode": "sum", "targetContainersNameRegex": "app",
				"resourcesExpr": map[string]any{"limits": map[string]any{"cpu": "cpu/2", "memory": "memory"}, "requests": map[string]any{"memory": "memory"}},
			}).
			Native("proxy", "proxy:v1").With("transferEnv", transferOf("app", "LATE"))
	}
	token := map[string]any{"name": "token", "mountPath": "/token", "readOnly": true}
	secrets := map[string]any{"name": "data", "mountPath": "/secrets", "subPathExpr": "$(POD)"}
	device := map[string]any{"name": "disk", "devicePath": "/dev/disk"}
	late, podName := map[string]any{"name": "LATE", "value": "1"}, map[string]any{"name": "POD", "value": "p"}
	push := func(c map[string]any, l string, all ...any) {
		list, _ := c[l].([]any)
		c[l] = append(list, all...)
	}
	pod := app().With("resources", limited).Obj()
	in := fixtures.Input(t, pod, set().Map())
	pod, _ = injected(t, in, pod)
	for _, name := range []string{"app", "log", "proxy"} {
		push(containerOf(t, pod, name), "volumeMounts", token)
	}
	application, sidecar := containerOf(t, pod, "app"), containerOf(t, pod, "log")
	push(application, "volumeMounts", secrets)
	push(application, "volumeDevices", device)
	push(application, "env", late, podName)
	application["resources"] = map[string]any{"limits": map[string]any{"cpu": "4", "memory": "3Gi"}, "requests": map[string]any{"memory": "2Gi"}}
	sidecar["resources"].(map[string]any)["requests"].(map[string]any)["cpu"] = "500m" // the API server
	sidecar["image"], sidecar["command"] = "mirror/log:v1", []any{"/wrapped"}
	sidecar["resources"].(map[string]any)["limits"].(map[string]any)["memory"] = "9Gi" // another webhook
	want := clone(t, pod)
	push(containerOf(t, want, "log"), "env", late, podName)
	push(containerOf(t, want, "log"), "volumeMounts", secrets)
	push(containerOf(t, want, "log"), "volumeDevices", device)
	push(containerOf(t, want, "proxy"), "env", late)

	in = fixtures.Input(t, pod, set().Map())
	in.Now = in.Now.Add(time.Second)
	got, plan := injected(t, in, pod)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the Pod (-want +got):\n%s", diff)
	}
	if !slices.Equal(plan.Injected, []string{"log"}) || len(plan.Skipped) > 0 || len(plan.Insertions)+len(plan.Replacements) > 0 {
		t.Errorf("injected %v, skipped %v", plan.Injected, plan.Skipped)
	}
	pod = fixtures.Apply(t, plan, pod)
	in = fixtures.Input(t, pod, set().Map())
	in.Now = in.Now.Add(2 * time.Second)
	if third, err := inject.Compute(in); err != nil || !third.Empty() || !slices.Equal(third.Skipped, []inject.Skip{{SidecarSet: "log", Reason: inject.SkipInjected}}) {
		t.Errorf("third call: %s, %v, %v", third.AppendPatch(nil), third.Skipped, err)
	}
}

// Whatever another webhook sets between two calls stays, the second call adds what the sidecars
// would have got if the webhook had come first, and the third call has nothing to do.
func TestInvariantOfTheSecondCall(t *testing.T) {
	taken, grown, worlds := 0, 0, rounds.Of(400, 60)
	for seed := range uint64(worlds) {
		w := newWorld(t, seed)
		plan, accepted := compute(t, w)
		if !accepted || anyInjected(t, w.pod) || mergesMetadataOnly(plan) {
			continue
		}
		r := &random{Rand: rand.New(rand.NewPCG(seed, 9))}
		before := fixtures.Apply(t, plan, w.pod)
		for _, c := range allContainers(before) {
			r.changeContainer(c)
		}
		second, err := inject.Compute(w.input(t, before))
		if err != nil {
			continue // the Pod cannot be injected any more
		}
		taken++
		if len(second.Additions) > 0 {
			grown++
		}
		after := fixtures.Apply(t, second, before)
		if len(second.Removals)+len(second.Replacements)+len(second.Insertions) > 0 || second.Replaces != nil {
			t.Fatalf("seed %d: the second call gives %s", seed, second.AppendPatch(nil))
		}
		if third, err := inject.Compute(w.input(t, after)); err != nil || !third.Empty() {
			t.Fatalf("seed %d: third call: %s, %v", seed, third.AppendPatch(nil), err)
		}
		first := clone(t, w.pod) // as if the webhook had come first
		for _, c := range allContainers(first) {
			changed := containerOf(t, before, c["name"].(string))
			for member, value := range changed {
				c[member] = value
			}
		}
		whole, err := inject.Compute(w.input(t, first))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, c := range allContainers(fixtures.Apply(t, whole, first)) {
			name := c["name"].(string)
			now := containerOf(t, after, name)
			for member, key := range map[string]string{"env": "name", "volumeMounts": "mountPath"} {
				has := append(keys(now, "env", "name"), append(keys(now, "volumeMounts", "mountPath"), keys(now, "volumeDevices", "devicePath")...)...)
				for _, wanted := range keys(c, member, key) {
					if !slices.Contains(has, wanted) {
						t.Fatalf("seed %d: container %s lacks %s %s:\n%s", seed, name, member, wanted, marshal(t, now))
					}
				}
			}
		}
		for _, c := range allContainers(before) {
			name := c["name"].(string)
			now := containerOf(t, after, name)
			for member, value := range c {
				list, isList := value.([]any)
				longer, _ := now[member].([]any)
				switch {
				case isList && len(longer) >= len(list) && marshal(t, longer[:len(list)]) == marshal(t, list):
				case marshal(t, value) != marshal(t, now[member]):
					t.Fatalf("seed %d: container %s had %s %v, and has %v", seed, name, member, value, now[member])
				}
			}
		}
	}
	if 5*taken < worlds || 20*grown < worlds {
		t.Errorf("of %d worlds, only %d are accepted and %d grow: the invariant is hardly tested", worlds, taken, grown)
	}
}

func keys(container map[string]any, list, key string) (keys []string) {
	all, _ := container[list].([]any)
	for _, e := range all {
		keys = append(keys, fmt.Sprint(e.(map[string]any)[key]))
	}
	return keys
}

// changeContainer is what another webhook may set on a container.
func (r *random) changeContainer(c map[string]any) {
	push := func(list string, key, value string) {
		all, _ := c[list].([]any)
		if !slices.Contains(keys(c, list, key), value) {
			c[list] = append(all, map[string]any{"name": "late", key: value})
		}
	}
	if r.oneIn(2) {
		c["image"] = "mirror/" + c["image"].(string)
	}
	if r.oneIn(2) {
		push("env", "name", r.pick("A", "B", "C", "Z"))
	}
	if r.oneIn(2) {
		push("volumeMounts", "mountPath", r.pick("/m", "/late", "/token"))
	}
	if r.oneIn(3) {
		push("volumeDevices", "devicePath", r.pick("/dev/x", "/dev/late"))
	}
	if r.oneIn(3) {
		c["args"] = []any{"--wrapped"}
	}
	if r.oneIn(3) {
		c["resources"] = map[string]any{"limits": map[string]any{"cpu": r.pick("3", "7"), "memory": r.pick("3Gi", "7Gi")}, "requests": map[string]any{"cpu": "1", "memory": "1Gi"}}
	}
}
