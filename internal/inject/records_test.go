package inject_test

import (
	"encoding/json"
	"errors"
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
)

func TestComputeRecordsWhatItInjects(t *testing.T) {
	pod := app().Obj()
	set := fixtures.SidecarSet("hot").Container("tail", "t:1").Container("mesh", "m:1").Native("proxy", "p:1").InitContainer("prepare", "i:1").LatestRevision("hot-abc")
	in := fixtures.Input(t, pod, set.Map())
	in.Now = time.Date(2026, 11, 20, 22, 58, 28, 999, time.FixedZone("", 3600))
	got, _ := injected(t, in, pod)
	p := in.Candidates[0].Current
	entry := `{"hot":{"updateTimestamp":"2026-11-20T21:58:28Z","hash":"` + p.Hash + `","sidecarSetName":"hot","sidecarList":["mesh","proxy","tail"],"controllerRevision":"hot-abc"}}`
	bare := `{"hot":{"updateTimestamp":"2026-11-20T21:58:28Z","hash":"` + p.HashWithoutImage + `","sidecarSetName":"hot","sidecarList":["mesh","proxy","tail"]}}`
	want := map[string]string{
		appsv1beta1.AnnotationHash: entry, appsv1beta1.AnnotationHashWithoutImage: bare, appsv1beta1.AnnotationInjectedList: "hot",
	}
	if diff := cmp.Diff(want, fixtures.View(t, got).Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
}

func TestComputeRecordsOnlyWithAContainer(t *testing.T) {
	none := fixtures.SidecarSet("none").Spec("containers", []any{}).PullSecret("s").PatchAnnotation("Retain", "seen", "yes")
	pod := app().Obj()
	got, _ := injected(t, fixtures.Input(t, pod, none.Map()), pod)
	if diff := cmp.Diff(map[string]string{"seen": "yes"}, fixtures.View(t, got).Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{}, list(got, "imagePullSecrets")); diff != "" {
		t.Errorf("imagePullSecrets (-want +got):\n%s", diff)
	}

	got, _ = injected(t, fixtures.Input(t, pod, none.Map(), log().Map()), pod)
	if names := annotation(got, appsv1beta1.AnnotationInjectedList); names != "log,none" {
		t.Errorf("injected list = %q, want every SidecarSet that takes part", names)
	}
	if hashes := annotation(got, appsv1beta1.AnnotationHash); !strings.Contains(hashes, `"sidecarSetName":"none","sidecarList":[]}`) {
		t.Errorf("%s, want an entry of none with an empty list", hashes)
	}
}

func TestComputeDropsRecordsOfUnknownSidecarSets(t *testing.T) {
	stamp := func(name string, at time.Time) podstate.HashRecord {
		return podstate.HashRecord{UpdateTimestamp: at, Hash: "h", SidecarSetName: name}
	}
	old := fixtures.Now.Add(-time.Hour)
	hashes := podstate.Hashes{}.With(stamp("gone", old), stamp("there", old), stamp("just-now", fixtures.Now.Add(-10*time.Second)), stamp("undated", time.Time{})).String()
	pod := app().
		Annotation(appsv1beta1.AnnotationHash, hashes).
		Annotation(appsv1beta1.AnnotationHashWithoutImage, hashes).
		Annotation(appsv1beta1.AnnotationInjectedList, "gone,just-now,never-recorded,there,undated").Obj()
	tests := map[string]struct {
		known func(string) bool
		want  []string
	}{
		"what exists and what is of this admission stays (T38)": {
			func(name string) bool { return name == "there" }, []string{"just-now", "log", "there"},
		},
		"all stays where nobody can tell": {
			nil, []string{"gone", "just-now", "log", "there", "undated"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			in := fixtures.Input(t, pod, log().Map())
			in.Known = tc.known
			got, _ := injected(t, in, pod)
			for _, key := range []string{appsv1beta1.AnnotationHash, appsv1beta1.AnnotationHashWithoutImage} {
				if diff := cmp.Diff(tc.want, recorded(t, annotation(got, key))); diff != "" {
					t.Errorf("%s (-want +got):\n%s", key, diff)
				}
			}
			want := tc.want
			if tc.known == nil {
				want = []string{"gone", "just-now", "log", "never-recorded", "there", "undated"}
			}
			if diff := cmp.Diff(want, podstate.ParseInjectedList(annotation(got, appsv1beta1.AnnotationInjectedList))); diff != "" {
				t.Errorf("injected list (-want +got):\n%s", diff)
			}
		})
	}
}

func TestComputePatchesMetadata(t *testing.T) {
	tests := map[string]struct {
		policy, has, value string // has "-": the Pod lacks the annotation
		want               string
	}{
		"Retain keeps what there is":                        {"Retain", "old", "new", "old"},
		"Retain keeps even an empty value":                  {"Retain", "", "new", ""},
		"Retain sets what is absent":                        {"Retain", "-", "new", "new"},
		"no policy is Retain":                               {"", "old", "new", "old"},
		"Overwrite replaces":                                {"Overwrite", "old", "new", "new"},
		"Overwrite sets what is absent":                     {"Overwrite", "-", "new", "new"},
		"an unknown policy is ignored":                      {"Sometimes", "old", "new", "old"},
		"MergePatchJson merges and sorts keys":              {"MergePatchJson", `{"b":1,"a":{"y":1,"x":2}}`, `{"a":{"x":null,"z":3},"c":"<&>"}`, `{"a":{"y":1,"z":3},"b":1,"c":"\u003c\u0026\u003e"}`},
		"MergePatchJson takes the text where absent":        {"MergePatchJson", "-", `{ "a": null } `, `{ "a": null } `},
		"MergePatchJson takes the text where empty":         {"MergePatchJson", "", `no JSON`, `no JSON`},
		"MergePatchJson replaces a value that is no object": {"MergePatchJson", `[1]`, `{"a":{"b":null}}`, `{"a":{}}`},
		"MergePatchJson by a value that is no object":       {"MergePatchJson", `{"a":1}`, `[1,null]`, `[1,null]`},
		"MergePatchJson keeps large numbers":                {"MergePatchJson", `{"a":12345678901234567890,"b":1.10}`, `{}`, `{"a":12345678901234567890,"b":1.10}`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			builder := app()
			if tc.has != "-" {
				builder.Annotation("example.com/config", tc.has)
			}
			pod := builder.Obj()
			set := log().Map()
			set["spec"].(map[string]any)["patchPodMetadata"] = []any{map[string]any{
				"patchPolicy": tc.policy, "annotations": map[string]any{"example.com/config": tc.value},
			}}
			got, _ := injected(t, fixtures.Input(t, pod, set), pod)
			if diff := cmp.Diff(tc.want, annotation(got, "example.com/config")); diff != "" {
				t.Errorf("annotation (-want +got):\n%s", diff)
			}
		})
	}
}

func TestComputePatchesMetadataInNameOrder(t *testing.T) {
	a := fixtures.SidecarSet("a").Container("a", "a:1").PatchAnnotation("Overwrite", "k", "a").PatchAnnotation("MergePatchJson", "j", `{"a":1}`)
	b := fixtures.SidecarSet("b").Container("b", "b:1").PatchAnnotation("Overwrite", "k", "b").PatchAnnotation("MergePatchJson", "j", `{"b":1}`)
	pod := app().Obj()
	got, _ := injected(t, fixtures.Input(t, pod, b.Map(), a.Map()), pod)
	if k, j := annotation(got, "k"), annotation(got, "j"); k != "b" || j != `{"a":1,"b":1}` {
		t.Errorf("k = %q, j = %q", k, j)
	}
}

func TestComputeRefusesMetadataThatIsNoJSON(t *testing.T) {
	tests := map[string]struct {
		has, value string
		inPod      bool
	}{
		"in the Pod":                   {`{`, `{"a":1}`, true},
		"in the SidecarSet":            {`{}`, `{`, false},
		"more than a value":            {`{} {}`, `{"a":1}`, true},
		"in both: the Pod comes first": {`{`, `}`, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := app().Annotation("k", tc.has).Obj()
			_, err := inject.Compute(fixtures.Input(t, pod, log().PatchAnnotation("MergePatchJson", "k", tc.value).Map()))
			var metadata *inject.MetadataError
			if !errors.As(err, &metadata) || metadata.SidecarSet != "log" || metadata.Key != "k" || metadata.InPod != tc.inPod {
				t.Errorf("error = %#v", err)
			}
		})
	}
}

// What the operator keeps on Pods cannot be set by patchPodMetadata (A 9.10).
func TestComputeIgnoresOwnedAnnotations(t *testing.T) {
	owned := []string{
		appsv1beta1.AnnotationHash, appsv1beta1.AnnotationHashWithoutImage, appsv1beta1.AnnotationInjectedList,
		appsv1beta1.AnnotationInPlaceUpdateState, appsv1beta1.AnnotationWorkingHotUpgradeContainer,
		appsv1beta1.AnnotationVersionPrefix + "mesh-1", appsv1beta1.AnnotationVersionAltPrefix + "mesh-1", "sidecarset.io/revision-choice",
	}
	set, plain := log(), log()
	for _, key := range owned {
		set.PatchAnnotation("Overwrite", key, "x")
	}
	pod := app().Obj()
	got, _ := injected(t, fixtures.Input(t, pod, set.Map()), pod)
	want, _ := injected(t, fixtures.Input(t, pod, plain.Map()), pod)
	if diff := cmp.Diff(fixtures.View(t, want).Annotations, fixtures.View(t, got).Annotations); diff != "" {
		t.Errorf("annotations (-without +with patchPodMetadata):\n%s", diff)
	}
}

// recorded names the SidecarSets in a hash annotation, sorted.
func recorded(t *testing.T, annotation string) []string {
	t.Helper()
	var hashes map[string]any
	if err := json.Unmarshal([]byte(annotation), &hashes); err != nil {
		t.Fatalf("%v: %s", err, annotation)
	}
	return slices.Sorted(maps.Keys(hashes))
}
