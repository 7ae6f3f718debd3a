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
	"github.com/sidecarset/operator/internal/podstate"
)

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

// recorded names the SidecarSets in a hash annotation, sorted.
func recorded(t *testing.T, annotation string) []string {
	t.Helper()
	var hashes map[string]any
	if err := json.Unmarshal([]byte(annotation), &hashes); err != nil {
		t.Fatalf("%v: %s", err, annotation)
	}
	return slices.Sorted(maps.Keys(hashes))
}
