package inject_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/test/rounds"
)

func enforced(set *fixtures.SidecarSetBuilder) map[string]any {
	return set.Annotation(appsv1beta1.AnnotationEnforce, "true").Map()
}

// secure is a SidecarSet with one container of each kind and a volume.
func secure() *fixtures.SidecarSetBuilder {
	return fixtures.SidecarSet("secure").
		Container("guard", "guard:v1").Mount("config", "/config").
		Container("tail", "tail:v1").AfterApp().
		Container("hot", "hot:v1").With("upgradeStrategy", hot).
		Native("proxy", "proxy:v1").BeforeApp().
		InitContainer("prepare", "prepare:v1").
		Volume("config")
}

func clone(t *testing.T, object map[string]any) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(marshal(t, object)), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// Without the annotation the same Pod is left as it is.
func TestWithoutEnforceAPodThatLooksInjectedIsLeftAsItIs(t *testing.T) {
	for _, value := range []string{"", "false", "TRUE"} {
		set := secure()
		if value != "" {
			set.Annotation(appsv1beta1.AnnotationEnforce, value)
		}
		pod := app().Obj()
		pod, _ = injected(t, fixtures.Input(t, pod, set.Map()), pod)
		items(pod, "containers")[0].(map[string]any)["command"] = []any{"sleep", "inf"}
		if plan, err := inject.Compute(fixtures.Input(t, pod, set.Map())); err != nil || !plan.Empty() {
			t.Errorf("with %q: %s, %v", value, plan.AppendPatch(nil), err)
		}
	}
}

// What a Pod claims about an enforced SidecarSet is dropped, what it has of others stays.
func TestEnforcedSidecarSetDropsWhatThePodClaims(t *testing.T) {
	pod := app().Annotation(appsv1beta1.AnnotationRevisionChoice, `{"secure":"secure-1","zoo":"zoo-1"}`).
		Annotation(appsv1beta1.AnnotationInPlaceUpdateState, `{"secure":{"lastContainerStatuses":{"guard":{"imageID":"a"}}},"zoo":{"x":[1,2]}}`).Obj()
	got, _ := injected(t, fixtures.Input(t, pod, enforced(secure())), pod)
	want := map[string]string{appsv1beta1.AnnotationRevisionChoice: `{"zoo":"zoo-1"}`, appsv1beta1.AnnotationInPlaceUpdateState: `{"zoo":{"x":[1,2]}}`}
	for key, value := range want {
		if diff := cmp.Diff(value, annotation(got, key)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", key, diff)
		}
	}
}

// A volume of an enforced SidecarSet comes before those of others, in any call.
func TestEnforcedVolumesComeFirst(t *testing.T) {
	a := fixtures.SidecarSet("a").Container("a", "a:v1").Mount("config", "/config").VolumeOf("config", "emptyDir", map[string]any{}).Map()
	b := enforced(fixtures.SidecarSet("b").Container("b", "b:v1").Mount("config", "/config").VolumeOf("config", "configMap", map[string]any{"name": "b"}))
	for name, calls := range map[string][][]map[string]any{"together": {{a, b}}, "first a": {{a}, {a, b}}, "first b": {{b}, {a, b}}} {
		t.Run(name, func(t *testing.T) {
			pod := app().Obj()
			for _, call := range calls {
				pod, _ = injected(t, fixtures.Input(t, pod, call...), pod)
			}
			if volume := marshal(t, items(pod, "volumes")[slices.Index(list(pod, "volumes"), "config")]); volume != `{"configMap":{"defaultMode":420,"name":"b"},"name":"config"}` {
				t.Errorf("volume %s", volume)
			}
		})
	}
}

// If two SidecarSets write one annotation, the last one wins, even after a call that
// repeats only the first one.
func TestEnforcedSidecarSetWritesNoAnnotationOverALaterOne(t *testing.T) {
	a := enforced(fixtures.SidecarSet("a").Container("a", "a:v1").PatchAnnotation("Overwrite", "k", "a"))
	b := fixtures.SidecarSet("b").Container("b", "b:v1").PatchAnnotation("Overwrite", "k", "b").Map()
	pod := app().Obj()
	for range 2 {
		pod, _ = injected(t, fixtures.Input(t, pod, a, b), pod)
		if got := annotation(pod, "k"); got != "b" {
			t.Errorf("annotation %q, want that of b", got)
		}
	}
}

// Invariants of worlds in which some SidecarSets are enforced.
var enforcedInvariants = map[string]func(t *testing.T, w world){
	"injecting twice is injecting once":       checkConverges,
	"what a Pod claims changes nothing":       checkClaimsChangeNothing,
	"the order of candidates does not matter": checkDeterministic,
}

func TestEnforcedInvariants(t *testing.T) {
	for name, invariant := range enforcedInvariants {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(rounds.Of(120, 20)) {
				if invariant(t, enforcedWorld(t, seed)); t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

func FuzzEnforcedInvariants(f *testing.F) {
	f.Add(uint64(0))
	f.Fuzz(func(t *testing.T, seed uint64) {
		for _, invariant := range enforcedInvariants {
			invariant(t, enforcedWorld(t, seed))
		}
	})
}

// checkConverges expects that a second call leaves the Pod as the first call made it. Without an
// enforced SidecarSet it has nothing to do, however much later it comes.
func checkConverges(t *testing.T, w world) {
	first, ok := compute(t, w)
	if !ok || mergesMetadataOnly(first) {
		return
	}
	pod := fixtures.Apply(t, first, w.pod)
	in := w.input(t, pod)
	enforces := slices.ContainsFunc(w.sets, func(p *inject.Compiled) bool { return appsv1beta1.Enforced(p.Set.Annotations) })
	in.Now = in.Now.Add(time.Hour)
	if enforces {
		in.Now = fixtures.Now.Add(20 * time.Second)
	}
	for i := range in.Candidates { // each call draws again
		in.Candidates[i].Draw = 1 - in.Candidates[i].Draw
	}
	again, err := inject.Compute(in)
	if err != nil || !enforces && !again.Empty() {
		t.Fatalf("second call: %v, %v", again, err)
	}
	if diff := cmp.Diff(normalAnnotations(t, pod), normalAnnotations(t, fixtures.Apply(t, again, pod))); diff != "" {
		t.Errorf("the Pod (-after one call +after two):\n%s", diff)
	}
}

// normalAnnotations decodes the annotation that SidecarSets merge JSON into:
// merging once more may drop a null that removed what was absent.
func normalAnnotations(t *testing.T, pod map[string]any) map[string]any {
	pod = clone(t, pod)
	for _, key := range []string{"k/a~b", "other"} {
		var value map[string]any
		if json.Unmarshal([]byte(annotation(pod, key)), &value) == nil && value != nil {
			dropNulls(value)
			annotations(pod)[key] = marshal(t, value)
		}
	}
	return pod
}

func dropNulls(object map[string]any) {
	maps.DeleteFunc(object, func(_ string, v any) bool { return v == nil })
	for key, v := range object {
		if members, ok := v.(map[string]any); ok {
			if dropNulls(members); len(members) == 0 {
				delete(object, key)
			}
		}
	}
}

// checkClaimsChangeNothing forges a Pod that claims to have the enforced SidecarSets, with
// the records of a real injection and with containers that do nothing.
func checkClaimsChangeNothing(t *testing.T, w world) {
	first, ok := compute(t, w)
	if !ok || mergesMetadataOnly(first) || anyInjected(t, w.pod) {
		return
	}
	honest := fixtures.Apply(t, first, w.pod)
	forged := clone(t, honest)
	owners := map[string]bool{}
	for _, e := range first.Insertions {
		if e.List == inject.InitContainers || e.List == inject.Containers {
			owners[e.Name] = w.enforces(e.SidecarSet)
		}
	}
	for _, c := range allContainers(forged) {
		if owners[c["name"].(string)] {
			c["command"] = []any{"sleep"}
			delete(c, "volumeMounts")
		}
	}
	got, err := inject.Compute(w.input(t, forged))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(normalAnnotations(t, honest), normalAnnotations(t, fixtures.Apply(t, got, forged))); diff != "" {
		t.Errorf("the Pod (-honest +forged):\n%s", diff)
	}
}

func (w world) enforces(sidecarSet string) bool {
	return slices.ContainsFunc(w.sets, func(p *inject.Compiled) bool {
		return p.Name() == sidecarSet && appsv1beta1.Enforced(p.Set.Annotations)
	})
}
