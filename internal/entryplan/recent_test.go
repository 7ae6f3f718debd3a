package entryplan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/entryplan"
)

const recentAnnotation = "sidecarset.io/recent"

// widen is entryplan.Widen without the change that only records names.
func widen(l entryplan.Layout, entries []entryplan.Entry, s *entryplan.Settings) (changes []entryplan.Change, homeless []entryplan.Entry) {
	changes, homeless = entryplan.Widen(l, entries, s)
	return slices.DeleteFunc(changes, func(change entryplan.Change) bool {
		return change.Index == entryplan.Provisional && len(change.Object.Webhooks) == 0
	}), homeless
}

// named are the objects after a leader has forgotten that there may be any name.
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

// wantRecent complains about other names than these. None at all, not even an empty map,
// says that it may be any.
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

// Where nothing is recorded, or something unreadable, the first record says that there may
// have been any.
func TestRecordsBeginWithAny(t *testing.T) {
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

// A version that knows no names leaves a higher serial behind. From then on it may be any.
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

// Names are recorded by the first of the changes, or by the one that adds the entry.
func TestNamesComeBeforeEntries(t *testing.T) {
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
	if changes, homeless := entryplan.Widen(l, []entryplan.Entry{e}, settings()); len(changes) != 1 || len(homeless) != 0 {
		t.Errorf("without the object: %d changes, homeless %v", len(changes), homeless)
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
