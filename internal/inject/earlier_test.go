package inject_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/podstate"
	"github.com/sidecarset/operator/test/rounds"
)

func mesh() *fixtures.SidecarSetBuilder { return fixtures.SidecarSet("mesh") }

// limited has a limit that a policy of another sidecar must not count.
var limited = map[string]any{"limits": map[string]any{"cpu": "1", "memory": "1Gi"}}

// Two replicas answer the calls for one Pod, and the first one has another revision of a
// SidecarSet than the second one. The Pod ends as if the first call had not been made.
func TestTheSecondCallTakesOutWhatTheFirstInjected(t *testing.T) {
	pairs := map[string][2]*fixtures.SidecarSetBuilder{
		"containers": {
			mesh().Container("mesh", "mesh:v1").Container("gone", "gone:v1").Container("last", "last:v1").AfterApp(),
			mesh().Container("mesh", "mesh:v2").Container("added", "added:v2"),
		},
		"native sidecars": {
			mesh().Native("gone", "gone:v1").Native("proxy", "proxy:v1").BeforeApp(),
			mesh().Native("added", "added:v2").Native("proxy", "proxy:v2").BeforeApp(),
		},
		"a sidecar that becomes native": {
			mesh().Container("proxy", "proxy:v1"),
			mesh().Native("proxy", "proxy:v1"),
		},
		"hot-upgrade pairs": {
			mesh().Container("gone", "gone:v1").With("upgradeStrategy", hot).Container("proxy", "proxy:v1").With("upgradeStrategy", hot).With("resourcesPolicy", halfCPU),
			mesh().Container("added", "added:v2").With("upgradeStrategy", hot).Container("proxy", "proxy:v2").With("upgradeStrategy", hot).With("resourcesPolicy", halfCPU),
		},
		"a pair and one container of the same name": {
			mesh().Container("proxy", "proxy:v1").With("upgradeStrategy", hot),
			mesh().Container("proxy", "proxy:v1"),
		},
		"what sidecars take from the Pod": {
			mesh().Container("gone", "gone:v1").Env("A", "gone").Mount("data", "/gone").With("resources", limited).
				Container("mesh", "mesh:v1").With("transferEnv", transferOf("added", "A")),
			mesh().Container("added", "added:v2").Env("A", "added").With("resources", limited).
				Container("mesh", "mesh:v2").With("transferEnv", transferOf("gone", "A")).With("shareVolumePolicy", enabled).
				With("resourcesPolicy", map[string]any{
					"targetContainersMode": "sum", "targetContainersNameRegex": ".",
					"resourcesExpr": map[string]any{"limits": map[string]any{"cpu": "cpu"}, "requests": map[string]any{"memory": "memory"}},
				}),
		},
		"all of them": {
			mesh().Container("gone", "gone:v1").Native("proxy", "proxy:v1"),
			mesh().Spec("containers", []any{}).PatchAnnotation("Retain", "seen", "yes"),
		},
	}
	for name, pair := range pairs {
		for order, contents := range map[string][2]map[string]any{"": {pair[0].Map(), pair[1].Map()}, ", other order": {pair[1].Map(), pair[0].Map()}} {
			t.Run(name+order, func(t *testing.T) {
				t.Parallel()
				pod := app().Env("A", "app").With("resources", limited).Obj()
				others := []map[string]any{fixtures.SidecarSet("agent").Container("agent", "agent:v1").Native("zoo", "zoo:v1").Map(), log().AfterApp().Map()}
				want, _ := injected(t, fixtures.Input(t, pod, append(others, contents[1])...), pod)

				got, first := injected(t, fixtures.Input(t, pod, append(others, contents[0])...), pod)
				in := fixtures.Input(t, got, append(others, contents[1])...)
				in.Now = in.Now.Add(time.Second)
				got, second := injected(t, in, got)
				for _, l := range []string{"initContainers", "containers"} {
					if diff := cmp.Diff(items(want, l), items(got, l)); diff != "" {
						t.Errorf("%s (-second call only +both):\n%s", l, diff)
					}
				}
				if diff := cmp.Diff(workingContainers(want), workingContainers(got)); diff != "" {
					t.Errorf("working containers (-second call only +both):\n%s", diff)
				}
				if first.Replaces != nil || !slices.Equal(second.Replaces, []string{"mesh"}) {
					t.Errorf("the calls replace %v and %v", first.Replaces, second.Replaces)
				}
				in = fixtures.Input(t, got, append(others, contents[1])...)
				in.Now = in.Now.Add(time.Hour)
				third, err := inject.Compute(in)
				injects := len(first.Insertions) > 0 && slices.Contains(podstate.ParseInjectedList(annotation(got, appsv1beta1.AnnotationInjectedList)), "mesh")
				if err != nil || !third.Empty() || injects && third.Replaces != nil {
					t.Errorf("third call: %s, replaces %v, %v", third.AppendPatch(nil), third.Replaces, err)
				}
			})
		}
	}
}

func workingContainers(pod map[string]any) map[string]string {
	working := podstate.ParseTexts(annotation(pod, appsv1beta1.AnnotationWorkingHotUpgradeContainer))
	if len(working) == 0 {
		return nil
	}
	return working
}

// A Pod that is created from the manifest of a running one has the revision of that
// time. Only what the Pod's record shows to be of the SidecarSet is taken out.
func TestWhatIsTakenOutOfACopiedPod(t *testing.T) {
	old := mesh().Container("mesh", "mesh:v1").Container("gone", "gone:v1").Mount("conf", "/conf").Volume("conf").
		Native("proxy", "proxy:v1").InitContainer("prepare", "prepare:v1")
	record := func(pod map[string]any, change func(records, mesh map[string]any)) {
		var records map[string]any
		if err := json.Unmarshal([]byte(annotation(pod, appsv1beta1.AnnotationHash)), &records); err != nil {
			t.Fatal(err)
		}
		change(records, records["mesh"].(map[string]any))
		annotations(pod)[appsv1beta1.AnnotationHash] = marshal(t, records)
	}
	tests := map[string]struct {
		change           func(pod map[string]any)
		with             []*fixtures.SidecarSetBuilder
		init, containers []string
	}{
		"as it ran: an init container that ends is in no record": {
			init: []string{"migrate", "prepare"}, containers: []string{"mesh", "app"},
		},
		"a user replaced a container": {
			change: func(pod map[string]any) { delete(containerOf(t, pod, "gone"), "env") },
			init:   []string{"migrate", "prepare"}, containers: []string{"mesh", "gone", "app"},
		},
		"another SidecarSet has the container, too": {
			change: func(pod map[string]any) {
				record(pod, func(records, _ map[string]any) {
					records["tools"] = map[string]any{"hash": "h", "sidecarList": []any{"gone"}}
				})
			},
			init: []string{"migrate", "prepare"}, containers: []string{"mesh", "gone", "app"},
		},
		"another SidecarSet brings the container now": {
			with: []*fixtures.SidecarSetBuilder{fixtures.SidecarSet("tools").Container("gone", "gone:v3")},
			init: []string{"migrate", "prepare"}, containers: []string{"mesh", "gone", "app"},
		},
		"a record of the old form": {
			change: func(pod map[string]any) {
				record(pod, func(records, mesh map[string]any) { records["mesh"] = mesh["hash"] })
			},
			init: []string{"migrate", "prepare", "proxy"}, containers: []string{"mesh", "gone", "app"},
		},
		"a record whose list cannot be read": {
			change: func(pod map[string]any) { record(pod, func(_, mesh map[string]any) { mesh["sidecarList"] = []any{1} }) },
			init:   []string{"migrate", "prepare", "proxy"}, containers: []string{"mesh", "gone", "app"},
		},
		"a record of the current revision": {
			change: func(pod map[string]any) {
				hash := fixtures.Compiled(t, mesh().Container("mesh", "mesh:v2").Map()).Hash
				record(pod, func(_, mesh map[string]any) { mesh["hash"] = hash })
			},
			init: []string{"migrate", "prepare", "proxy"}, containers: []string{"mesh", "gone", "app"},
		},
		"no record": {
			change: func(pod map[string]any) { clear(annotations(pod)) },
			init:   []string{"migrate", "prepare", "proxy"}, containers: []string{"mesh", "gone", "app"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := app().Obj()
			pod, _ = injected(t, fixtures.Input(t, pod, old.Map()), pod)
			if tc.change != nil {
				tc.change(pod)
			}
			sets := []map[string]any{mesh().Container("mesh", "mesh:v2").Map()}
			for _, set := range tc.with {
				sets = append(sets, set.Map())
			}
			in := fixtures.Input(t, pod, sets...)
			in.Now = in.Now.Add(1000 * time.Hour)
			got, _ := injected(t, in, pod)
			if diff := cmp.Diff(tc.init, list(got, "initContainers")); diff != "" {
				t.Errorf("init containers (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.containers, list(got, "containers")); diff != "" {
				t.Errorf("containers (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"data", "conf"}, list(got, "volumes")); diff != "" {
				t.Errorf("volumes (-want +got):\n%s", diff)
			}
		})
	}
}

// A SidecarSet that injects nothing into the Pod takes nothing out.
func TestASkippedSidecarSetTakesNothingOut(t *testing.T) {
	pod := app().Obj()
	pod, _ = injected(t, fixtures.Input(t, pod, mesh().Container("gone", "gone:v1").Map(), log().Map()), pod)
	got, plan := injected(t, fixtures.Input(t, pod, mesh().Container("added", "added:v2").Paused().Map(), log().Map()), pod)
	if diff := cmp.Diff(pod, got); diff != "" || plan.Replaces != nil {
		t.Errorf("replaces %v; the Pod (-before +after):\n%s", plan.Replaces, diff)
	}
}

// A replica that does not know a canary yet must not give its containers to the base.
func TestReplacesNamesTheCanaryWhoseContainerIsReplaced(t *testing.T) {
	canary := mesh().Container("mesh", "mesh:v2").CanaryOf("base")
	base := func() *fixtures.SidecarSetBuilder {
		return fixtures.SidecarSet("base").Container("mesh", "mesh:v1")
	}
	for name, stale := range map[string]map[string]any{"base": base().Map(), "enforced base": enforced(base())} {
		pod := app().Obj()
		pod, _ = injected(t, fixtures.Input(t, pod, canary.Map(), base().Map()), pod)
		if _, plan := injected(t, fixtures.Input(t, pod, stale), pod); !slices.Equal(plan.Replaces, []string{"mesh"}) {
			t.Errorf("%s: replaces %v, want the canary", name, plan.Replaces)
		}
	}
}

// Whatever other revision the Pod was given first, it ends with the containers of the last
// one. Plain init containers are in no record, so the first revision's stay.
func TestInvariantOfEarlierRevisions(t *testing.T) {
	taken, worlds := 0, rounds.Of(400, 50)
	for seed := range uint64(worlds) {
		w, earlier := newWorld(t, seed), newWorld(t, seed+1<<32)
		earlier.pod, earlier.draws = w.pod, w.draws
		earlier.sets = slices.DeleteFunc(earlier.sets, func(p *inject.Compiled) bool {
			return !slices.ContainsFunc(w.sets, func(q *inject.Compiled) bool { return q.Name() == p.Name() })
		})
		last, accepted := compute(t, w)
		first, acceptedFirst := compute(t, earlier)
		if !accepted || !acceptedFirst || anyInjected(t, w.pod) || len(last.Skipped)+len(first.Skipped) > 0 {
			continue
		}
		pod := fixtures.Apply(t, first, w.pod)
		if first.Annotations[appsv1beta1.AnnotationRevisionChoice] != "" || listsOneNameTwice(pod) {
			continue // the second call honours the choice; a name of two SidecarSets has no owner
		}
		second, err := inject.Compute(w.input(t, pod))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		taken++
		want, got := fixtures.Apply(t, last, w.pod), fixtures.Apply(t, second, pod)
		if diff := cmp.Diff(sidecarNames(want), sidecarNames(got)); diff != "" {
			t.Fatalf("seed %d: containers (-last revision only +both):\n%s", seed, diff)
		}
		if again, err := inject.Compute(w.input(t, got)); err != nil || !again.Empty() && !mergesMetadataOnly(again) {
			t.Fatalf("seed %d: another call: %s, %v", seed, again.AppendPatch(nil), err)
		}
	}
	if 10*taken < worlds {
		t.Errorf("only %d of %d worlds are accepted: the invariant is hardly tested", taken, worlds)
	}
}

// listsOneNameTwice reports whether two SidecarSets have a sidecar of one name, one of them as
// a hot-upgrade pair.
func listsOneNameTwice(pod map[string]any) bool {
	names := map[string]bool{}
	for _, sidecars := range podstate.ParseHashes(annotation(pod, appsv1beta1.AnnotationHash)).Sidecars() {
		for _, name := range sidecars {
			if names[name] {
				return true
			}
			names[name] = true
		}
	}
	return false
}

// sidecarNames are the containers and native sidecars of a Pod, with their images.
func sidecarNames(pod map[string]any) []string {
	all := map[string]bool{}
	for _, l := range []string{"initContainers", "containers"} {
		for _, c := range items(pod, l) {
			if c := c.(map[string]any); l == "containers" || c["restartPolicy"] == "Always" {
				all[strings.Join([]string{l, c["name"].(string), fmt.Sprint(c["image"])}, " ")] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}
