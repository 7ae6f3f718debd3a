package entryplan_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
	"github.com/sidecarset/operator/internal/inject"
)

const recentAnnotation = "sidecarset.io/recent"

// widen is entryplan.Widen without the change that only records names.
func widen(l entryplan.Layout, entries []entryplan.Entry, s *entryplan.Settings) (changes []entryplan.Change, unplaced []entryplan.Entry) {
	changes, unplaced = entryplan.Widen(l, entries, s)
	return slices.DeleteFunc(changes, func(change entryplan.Change) bool {
		return change.Index == entryplan.Provisional && len(change.Object.Webhooks) == 0
	}), unplaced
}

// named are the objects after a leader has removed RecentAny from the record.
func named() entryplan.Layout {
	l := bare()
	l[entryplan.Provisional].Annotations[recentAnnotation] = `{"names":{}}`
	return l
}

func record(l entryplan.Layout, contents map[string]string) entryplan.Layout {
	if change, ok := entryplan.Record(l, contents, settings()); ok {
		l[change.Index] = change.Object
	}
	return l
}

// wantRecent complains about other names than these. If want is nil, any SidecarSet may
// have been stored; an empty map says that none was.
func wantRecent(t *testing.T, l entryplan.Layout, want map[string]string) {
	t.Helper()
	got, ok := entryplan.Recent(l[entryplan.Provisional].Annotations)
	if diff := cmp.Diff(want, got); diff != "" || ok != (want != nil) {
		t.Errorf("recent, %v (-want +got):\n%s", ok, diff)
	}
}

func TestNamesAreRecorded(t *testing.T) {
	full, many := map[string]string{}, map[string]string{}
	for i := range 33 {
		name := fmt.Sprint(strings.Repeat("x", 250), i)
		if many[name] = "new"; i < 32 {
			full[name] = "new"
		}
	}
	tests := map[string]struct {
		records []map[string]string
		want    map[string]string
	}{
		"none":                             {nil, map[string]string{}},
		"two":                              {[]map[string]string{{"log": "a", "db": "b"}}, map[string]string{"log": "a", "db": "b"}},
		"one after the other":              {[]map[string]string{{"log": "a"}, {"db": "b"}}, map[string]string{"log": "a", "db": "b"}},
		"the same content again":           {[]map[string]string{{"log": "a"}, {"log": "a"}}, map[string]string{"log": "a"}},
		"another content":                  {[]map[string]string{{"log": "a"}, {"log": "b"}}, map[string]string{"log": ""}},
		"another, and the first again":     {[]map[string]string{{"log": "a"}, {"log": "b"}, {"log": "a"}}, map[string]string{"log": ""}},
		"any":                              {[]map[string]string{{"log": "a"}, {entryplan.RecentAny: ""}}, nil},
		"more than there is room for":      {[]map[string]string{many}, nil},
		"another one after too many":       {[]map[string]string{many, {"log": "a"}}, nil},
		"the same again, where it is full": {[]map[string]string{full, full}, full},
		"a later generation":               {[]map[string]string{{"log": "1.a.x"}, {"log": "2.a.y"}}, map[string]string{"log": "2.a.y"}},
		"an earlier one":                   {[]map[string]string{{"log": "10.a.x"}, {"log": "9.a.y"}}, map[string]string{"log": "10.a.x"}},
		"another of one generation":        {[]map[string]string{{"log": "1.a.x"}, {"log": "1.a.y"}}, map[string]string{"log": "1.a."}},
		"and then a later one":             {[]map[string]string{{"log": "1.a.x"}, {"log": "1.a.y"}, {"log": "2.a.z"}}, map[string]string{"log": "2.a.z"}},
		"and then the first again":         {[]map[string]string{{"log": "1.a.x"}, {"log": "1.a.y"}, {"log": "1.a.x"}}, map[string]string{"log": "1.a."}},
		"another object":                   {[]map[string]string{{"log": "1.a.x"}, {"log": "2.b.x"}}, map[string]string{"log": ""}},
		"another object before":            {[]map[string]string{{"log": "2.a.x"}, {"log": "1.b.x"}}, map[string]string{"log": ""}},
		"one that cannot be read":          {[]map[string]string{{"log": "1.a.x"}, {"log": "x.a.y"}}, map[string]string{"log": ""}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := named()
			for _, contents := range tc.records {
				l = record(l, contents)
			}
			wantRecent(t, l, tc.want)
			if size := len(l[entryplan.Provisional].Annotations[recentAnnotation]); size > 12_000 {
				t.Errorf("names take %d bytes", size)
			}
		})
	}
}

// If nothing is recorded, or the record cannot be read, the first record says that any
// SidecarSet may have been stored.
func TestTheFirstRecordStandsForAnySidecarSet(t *testing.T) {
	for name, value := range map[string]string{"nothing": "", "no object": "[]", "no names": "{}", "no numbers": `{"names":{"log":{"serial":"x"}}}`} {
		t.Run(name, func(t *testing.T) {
			l := named()
			l[entryplan.Provisional].Annotations[recentAnnotation] = value
			wantRecent(t, l, nil)
			wantRecent(t, record(l, map[string]string{"log": "a"}), nil)
		})
	}
	l := named()
	l[entryplan.Provisional] = nil
	if change, ok := entryplan.Record(l, map[string]string{"log": "a"}, settings()); ok {
		t.Errorf("without an object there is %v to write", change)
	}
}

// A version of the operator that records no names leaves a higher serial behind. From then
// on, any SidecarSet may have been stored.
func TestAnEntryThatAnOlderVersionWroteIsNoticed(t *testing.T) {
	l := record(named(), map[string]string{"log": "a"})
	before := l[entryplan.Provisional].Annotations[recentAnnotation]
	changes, _ := entryplan.Widen(l, []entryplan.Entry{strict(t, 1)}, settings())
	l = carryOut(l, changes)
	wantRecent(t, l, map[string]string{"log": "a", "ghost": ""})
	old := l[entryplan.Provisional].DeepCopy()
	old.Annotations[recentAnnotation] = before
	l[entryplan.Provisional] = old
	wantRecent(t, l, nil)
	wantRecent(t, record(l, map[string]string{"db": "b"}), nil)
}

// The Content distinguishes a later generation of a SidecarSet from an earlier one, and an
// object from another one of its name.
func TestContentTellsGenerations(t *testing.T) {
	set := sidecarSet("log", "web")
	record := func(uid types.UID, generation int64) map[string]string {
		set.UID, set.Generation = uid, generation
		return map[string]string{"log": entryplan.Content(set)}
	}
	first, second, another := record("one", 9), record("one", 10), record("two", 1)
	wantRecent(t, recorded(first, second), second)
	wantRecent(t, recorded(second, first), second)
	wantRecent(t, recorded(first, another), map[string]string{"log": ""})
	combined := entryplan.Combine([]entryplan.Entry{{Name: "e", Contents: second}, {Name: "e", Contents: first}})
	if diff := cmp.Diff(second, combined[0].Contents); diff != "" {
		t.Errorf("two reviews in one write (-want +got):\n%s", diff)
	}
	if set.UID = ""; entryplan.Content(set) != "" {
		t.Error("a SidecarSet without a UID has a content")
	}
}

// A SidecarSet has the same Content in its review, which has kubectl apply's annotation,
// and as replicas and the leader hold it, without that annotation.
func TestContentIsEqualForReviewedAndStoredSidecarSets(t *testing.T) {
	for name, annotations := range map[string]map[string]string{
		"alone":             {},
		"beside another":    {appsv1beta1.AnnotationEnforce: "true"},
		"beside the hashes": {appsv1beta1.AnnotationHash: "h", appsv1beta1.AnnotationHashWithoutImage: "i"},
	} {
		t.Run(name, func(t *testing.T) {
			reviewed := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet",
				"metadata": map[string]any{"name": "log", "uid": "u", "generation": int64(3)},
				"spec": map[string]any{
					"selector":   map[string]any{"matchLabels": map[string]any{"app": "web"}},
					"containers": []any{map[string]any{"name": "log", "image": "log:1"}},
				},
			}}
			reviewed.SetAnnotations(annotations)
			bare := reviewed.DeepCopy()
			kept := maps.Clone(annotations)
			kept[corev1.LastAppliedConfigAnnotation] = `{"spec":{}}`
			reviewed.SetAnnotations(kept)
			set := &appsv1beta1.SidecarSet{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(reviewed.Object, set); err != nil {
				t.Fatal(err)
			}
			content := entryplan.Content(set)
			for name, object := range map[string]*unstructured.Unstructured{"as it is": reviewed, "without it": bare} {
				program, err := inject.Compile(object.Object)
				if err != nil {
					t.Fatal(err)
				}
				if held := entryplan.Content(program.Set); held != content {
					t.Errorf("compiled %s, it has Content %s; reviewed, %s", name, held, content)
				}
			}
			set.Annotations["other"] = "x"
			if entryplan.Content(set) == content {
				t.Error("another annotation leaves the Content as it was")
			}
		})
	}
}

func recorded(all ...map[string]string) entryplan.Layout {
	l := named()
	for _, contents := range all {
		l = record(l, contents)
	}
	return l
}

// The leader records again only what is not recorded, or may be removed too soon.
func TestTheLeaderRecordsMissingNamesAgain(t *testing.T) {
	const admission = 45 * time.Minute
	log, changed := map[string]string{"log": "2.a.x"}, map[string]string{"log": "3.a.x"}
	tests := map[string]struct {
		layout entryplan.Layout
		age    time.Duration
		want   map[string]string
	}{
		"nothing is recorded":                  {named(), 0, log},
		"it is recorded":                       {recorded(log), 0, nil},
		"a while ago":                          {recorded(log), admission, nil},
		"too long ago":                         {recorded(log), admission + 1, log},
		"a later generation is recorded":       {recorded(changed), 0, nil},
		"an earlier one":                       {recorded(map[string]string{"log": "1.a.x"}), 0, log},
		"two contents":                         {recorded(log, map[string]string{"log": "2.a.y"}), 0, nil},
		"another SidecarSet":                   {recorded(map[string]string{"db": "2.a.x"}), 0, log},
		"any may be on its way":                {recorded(map[string]string{entryplan.RecentAny: ""}), admission, nil},
		"any was on its way":                   {recorded(map[string]string{entryplan.RecentAny: ""}), admission + 1, log},
		"what is recorded cannot be read":      {unreadable(), 0, log},
		"there is no object to record them in": {entryplan.Layout{}, 0, log},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			windows := entryplan.Windows{}
			windows.Observe(tc.layout, nil, noon)
			got := windows.Unrecorded(tc.layout, log, noon.Add(tc.age), admission)
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("to record (-want +got):\n%s", diff)
			}
			if got := (entryplan.Windows{}).Unrecorded(tc.layout, log, noon.Add(tc.age), admission); tc.age > admission && len(got) != 0 {
				t.Errorf("what a leader sees for the first time is as if it was recorded now, but it records %v", got)
			}
		})
	}
}

// unreadable is a layout with names that are recorded in an unknown form.
func unreadable() entryplan.Layout {
	l := named()
	l[entryplan.Provisional].Annotations[recentAnnotation] = "[]"
	return l
}

// Names are recorded by the first of the changes, or by the one that adds the entry.
func TestNamesAreRecordedNoLaterThanEntries(t *testing.T) {
	set := sidecarSet("log", "web")
	set.UID = "uid"
	e := entryOf(t, set)
	l, _ := settle(t, calm(named(), e))
	changes, _ := entryplan.Widen(l, []entryplan.Entry{e, strict(t, 1)}, settings())
	if len(changes) != 2 || changes[0].Index != entryplan.Provisional {
		t.Fatalf("%d changes, the first of object %d", len(changes), changes[0].Index)
	}
	l = carryOut(l, changes[:1])
	wantRecent(t, l, map[string]string{"log": entryplan.Content(set), "ghost": ""})
	if l[entryplan.Provisional] = nil; entryplan.Content(set) == "" {
		t.Error("a SidecarSet with a UID has no content")
	}
	if changes, unplaced := entryplan.Widen(l, []entryplan.Entry{e}, settings()); len(changes) != 1 || len(unplaced) != 0 {
		t.Errorf("without the object: %d changes, unplaced %v", len(changes), unplaced)
	}
}

// The leader forgets a name a window after it saw the last record of it.
func TestNamesAreForgottenAfterAWindow(t *testing.T) {
	l, windows := record(named(), map[string]string{"log": "a", "db": "b"}), entryplan.Windows{}
	pass := func(at time.Time) entryplan.Plan {
		windows.Observe(l, nil, at)
		state := calm(l)
		state.Windows, state.Now = windows, at
		plan := entryplan.Next(state, settings())
		l = carryOut(l, plan.Changes)
		return plan
	}
	if plan := pass(noon); plan.Again != time.Hour || len(plan.Changes) != 0 {
		t.Errorf("again after %v, with %d changes", plan.Again, len(plan.Changes))
	}
	l = record(l, map[string]string{"log": "a"}) // a second before the end
	pass(noon.Add(time.Hour - time.Second))
	wantRecent(t, l, map[string]string{"log": "a", "db": "b"})
	pass(noon.Add(time.Hour))
	wantRecent(t, l, map[string]string{"log": "a"})
	// A record that was not observed yet begins a window.
	l = record(l, map[string]string{"log": "a"})
	state := calm(l)
	state.Windows, state.Now = windows, noon.Add(3*time.Hour)
	l = carryOut(l, entryplan.Next(state, settings()).Changes)
	wantRecent(t, l, map[string]string{"log": "a"})
	l = record(l, map[string]string{entryplan.RecentAny: ""})
	pass(noon.Add(3 * time.Hour))
	wantRecent(t, l, nil)
	pass(noon.Add(4 * time.Hour))
	wantRecent(t, l, map[string]string{})
}

// Reviews of one SidecarSet that share a write may have different selectors and
// generations.
func TestTheLaterGenerationIsRecorded(t *testing.T) {
	for _, older := range []int{0, 1} {
		entries := []entryplan.Entry{strict(t, 0), strict(t, 1)}
		entries[older].Contents = map[string]string{"log": "1.object.a"}
		entries[1-older].Contents = map[string]string{"log": "2.object.b"}
		l := named()
		changes, _ := entryplan.Widen(l, entries, settings())
		for _, change := range changes {
			l[change.Index] = change.Object
		}
		wantRecent(t, l, map[string]string{"log": "2.object.b"})
	}
}
