package entryplan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/entryplan"
)

// noon is the leader's time. The window of an entry that began an hour ago is over.
var (
	noon    = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	hourAgo = noon.Add(-time.Hour)
)

// calm is what the leader knows when nothing is on its way.
func calm(l entryplan.Layout, wanted ...entryplan.Entry) entryplan.State {
	state := entryplan.State{
		Layout: l, Wanted: entryplan.Combine(wanted), CanServe: true, Room: entryplan.MaxProvisional,
		Windows: entryplan.Windows{coarseName: {Since: hourAgo}}, Now: noon, Window: time.Hour, Complete: true,
	}
	for _, e := range wanted {
		state.Windows[e.Name] = entryplan.Window{Since: hourAgo}
	}
	for _, c := range l {
		for _, name := range podEntryNames(c) {
			state.Windows[name] = entryplan.Window{Since: hourAgo}
		}
	}
	return state
}

// unsettled makes every window begin now.
func unsettled(s *entryplan.State) { s.Windows = nil }

// claimed claims all entries, which unsettles them.
func claimed(s *entryplan.State) {
	s.Claimed, s.Windows = map[string]bool{}, nil
	for _, e := range s.Wanted {
		s.Claimed[e.Name] = true
	}
}

// carryOut returns the layout after changes, without other writes between them.
func carryOut(l entryplan.Layout, changes []entryplan.Change) entryplan.Layout {
	for _, change := range changes {
		l[change.Index] = change.Object
	}
	return l
}

// settle plans until there is nothing to do.
func settle(t testing.TB, state entryplan.State) (entryplan.Layout, *entryplan.Entry) {
	t.Helper()
	s := settings()
	s.MinSerial *= 2 // time has passed
	for range 4 {
		plan := entryplan.Next(state, s)
		if len(plan.Changes) == 0 {
			return state.Layout, plan.Overflow
		}
		state.Layout, state.Claimed = carryOut(state.Layout, plan.Changes), nil
	}
	t.Fatal("the plan never comes to rest")
	return entryplan.Layout{}, nil
}

// webhookOf returns an entry; nil if it is not present.
func webhookOf(l entryplan.Layout, name string) *admissionregistrationv1.MutatingWebhook {
	if i, at, ok := l.Locate(name); ok {
		return &l[i].Webhooks[at]
	}
	return nil
}

// pathOf is the path of an entry; "none" if the entry is not present.
func pathOf(l entryplan.Layout, name string) string {
	if w := webhookOf(l, name); w != nil {
		return *w.ClientConfig.Service.Path
	}
	return "none"
}

func TestNextChoosesThePath(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	i, object := widened(t, e, settings())
	wide := bare()
	wide[i] = object
	narrow, _ := settle(t, calm(bare(), e))
	tests := map[string]struct {
		layout entryplan.Layout
		change func(*entryplan.State)
		want   string
	}{
		"a new entry is fresh":                              {bare(), unsettled, "/pods/fresh"},
		"an entry becomes fresh when it is claimed":         {narrow, claimed, "/pods/fresh"},
		"and stays fresh":                                   {wide, claimed, "/pods/fresh"},
		"a widened entry stays fresh until it has settled":  {wide, unsettled, "/pods/fresh"},
		"and while SidecarSets may be unknown":              {wide, func(s *entryplan.State) { s.Complete = false }, "/pods/fresh"},
		"then it is on /pods":                               {wide, func(*entryplan.State) {}, "/pods"},
		"one that is on /pods does not go back to wait":     {narrow, unsettled, "/pods"},
		"nothing is added while nobody can answer":          {bare(), func(s *entryplan.State) { s.CanServe = false }, "none"},
		"what stands is kept while nobody can answer":       {narrow, func(s *entryplan.State) { s.CanServe = false }, "/pods"},
		"a refused entry is not added":                      {bare(), func(s *entryplan.State) { s.Refused = map[string]bool{e.Name: true} }, "none"},
		"and goes at once":                                  {wide, func(s *entryplan.State) { s.Refused, s.Windows = map[string]bool{e.Name: true}, nil }, "none"},
		"one that nobody wants stays until it has settled":  {wide, func(s *entryplan.State) { s.Wanted, s.Windows = nil, nil }, "/pods/fresh"},
		"and while SidecarSets may be unknown, too":         {wide, func(s *entryplan.State) { s.Wanted, s.Complete = nil, false }, "/pods/fresh"},
		"then it goes":                                      {wide, func(s *entryplan.State) { s.Wanted = nil }, "none"},
		"also while nobody can answer":                      {wide, func(s *entryplan.State) { s.Wanted, s.CanServe = nil, false }, "none"},
		"a second SidecarSet with its selectors changes no": {narrow, func(s *entryplan.State) { s.Wanted[0].Members = []string{"a", "log"} }, "/pods"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			state := calm(tc.layout, e)
			tc.change(&state)
			l, _ := settle(t, state)
			if got := pathOf(l, e.Name); got != tc.want {
				t.Errorf("the entry is on %s, want %s", got, tc.want)
			}
			if tc.want == "none" && !l.Empty() {
				t.Errorf("something is left: %v", l)
			}
		})
	}
}

// The planner says when to look again, and when a live list would change the plan.
func TestNextSaysWhatItWaitsFor(t *testing.T) {
	e, gone := entryOf(t, sidecarSet("log", "web")), entryOf(t, sidecarSet("gone", "db"))
	l := carryOut(bare(), entryplan.Next(func() entryplan.State { s := calm(bare(), e, gone); unsettled(&s); return s }(), settings()).Changes)
	tests := map[string]struct {
		change     func(*entryplan.State)
		again      time.Duration
		incomplete bool
	}{
		"nothing":                     {func(s *entryplan.State) { s.Complete = true }, 0, false},
		"a live list":                 {func(*entryplan.State) {}, 0, true},
		"the rest of the window":      {func(s *entryplan.State) { s.Windows[e.Name] = entryplan.Window{Since: noon.Add(-time.Minute)} }, 59 * time.Minute, true},
		"a whole one":                 {unsettled, time.Hour, false},
		"that of an entry to be gone": {func(s *entryplan.State) { s.Windows[gone.Name] = entryplan.Window{Since: noon, Orphaned: noon} }, time.Hour, true},
		"until an orphan is closed": {func(s *entryplan.State) {
			s.Windows = entryplan.Windows{e.Name: {Since: noon}, gone.Name: {Since: noon, Orphaned: noon.Add(-time.Minute)}}
		}, 59 * time.Minute, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			state := calm(l, e)
			state.Complete = false
			tc.change(&state)
			if plan := entryplan.Next(state, settings()); plan.Again != tc.again || plan.Incomplete != tc.incomplete {
				t.Errorf("again after %v, incomplete: %v", plan.Again, plan.Incomplete)
			}
		})
	}
}

// A new leader counts each window from when it sees it, and a new write begins another.
func TestAWindowBeginsWhenTheLeaderSeesTheEntry(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	i, object := widened(t, e, settings())
	l := bare()
	l[i] = object
	at := func(minute int) time.Time { return noon.Add(time.Duration(minute) * time.Minute) }
	windows := entryplan.Windows{}
	expect := func(minute int, wanted []entryplan.Entry, since int, orphaned time.Time) {
		t.Helper()
		windows.Observe(l, wanted, at(minute))
		if got := windows[e.Name]; !got.Since.Equal(at(since)) || !got.Orphaned.Equal(orphaned) {
			t.Errorf("in minute %d: %+v, want minute %d, orphaned %v", minute, got, since, orphaned)
		}
	}
	touch := func() {
		changes, _ := widen(l, []entryplan.Entry{e}, settings())
		l = carryOut(l, changes)
	}
	wanted := []entryplan.Entry{e}
	expect(0, wanted, 0, time.Time{})
	expect(5, wanted, 0, time.Time{})
	touch()
	expect(6, wanted, 6, time.Time{})
	touch() // twice between two looks
	touch()
	expect(7, wanted, 7, time.Time{})
	expect(8, nil, 7, at(8))
	touch()
	expect(9, nil, 9, at(8))
	expect(10, wanted, 9, time.Time{})
	l[i] = bare()[i]
	if windows.Observe(l, nil, at(22)); len(windows) != 0 {
		t.Errorf("windows of what is gone: %v", windows)
	}
	l[i] = object
	expect(30, wanted, 30, time.Time{})
}

// Reviews whose SidecarSets are never stored may touch an entry for ever. A review that was
// promised the entry keeps it for a window, though.
func TestAnEntryWithoutMembersIsClosedBeforeItGoes(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	i, object := widened(t, e, settings())
	l := bare()
	l[i] = object
	state := func(window entryplan.Window, wanted ...entryplan.Entry) entryplan.State {
		s := calm(l, wanted...)
		s.Windows = entryplan.Windows{e.Name: window}
		return s
	}
	if plan := entryplan.Next(state(entryplan.Window{Since: noon, Orphaned: noon.Add(time.Second - time.Hour)}), settings()); len(plan.Changes) != 0 || plan.Again != time.Second {
		t.Fatalf("before a window is over: %v", plan)
	}
	plan := entryplan.Next(state(entryplan.Window{Since: noon, Orphaned: hourAgo}), settings())
	l = carryOut(l, plan.Changes)
	if pathOf(l, e.Name) != "/pods/fresh" {
		t.Fatalf("when it is over the entry is on %s", pathOf(l, e.Name))
	}
	if _, serves := l.Serves(e, settings()); serves {
		t.Error("a closed entry is relied on")
	}
	changes, unplaced := widen(l, []entryplan.Entry{e}, settings())
	if len(unplaced) != 0 || len(changes) != 1 || changes[0].Index != entryplan.Provisional {
		t.Errorf("a review has %v changed, unplaced %v", changes, unplaced)
	}
	full := carryOut(clone(l), changes)
	full[entryplan.Provisional].Annotations[roomAnnotation] = "1"
	if _, unplaced := entryplan.Widen(full, []entryplan.Entry{strict(t, 1)}, settings()); len(unplaced) != 1 {
		t.Error("a closed entry makes room for another review")
	}
	if again := entryplan.Next(state(entryplan.Window{Since: noon, Orphaned: hourAgo}), settings()); len(again.Changes) != 0 {
		t.Errorf("it is closed again: %v", again.Changes)
	}
	// A SidecarSet that is stored opens it.
	claim := state(entryplan.Window{Since: noon}, e)
	claim.Claimed = map[string]bool{e.Name: true}
	opened := carryOut(l, entryplan.Next(claim, settings()).Changes)
	if _, serves := opened.Serves(e, settings()); !serves {
		t.Error("the entry of a stored SidecarSet stays closed")
	}
	// Otherwise it goes, a window later.
	if l, _ := settle(t, state(entryplan.Window{Since: hourAgo, Orphaned: hourAgo})); !l.Empty() {
		t.Errorf("the entry is left on %s", pathOf(l, e.Name))
	}
}

func TestHoldsSeesWhatSomebodyChanged(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	tests := map[string]struct {
		edit func(*admissionregistrationv1.MutatingWebhook)
		want bool
	}{
		"as it was planned":           {func(*admissionregistrationv1.MutatingWebhook) {}, true},
		"the other path":              {func(w *admissionregistrationv1.MutatingWebhook) { w.ClientConfig.Service.Path = new("/pods") }, true},
		"another bundle":              {func(w *admissionregistrationv1.MutatingWebhook) { w.ClientConfig.CABundle = []byte("new") }, true},
		"no bundle":                   {func(w *admissionregistrationv1.MutatingWebhook) { w.ClientConfig.CABundle = nil }, false},
		"a path that is none of ours": {func(w *admissionregistrationv1.MutatingWebhook) { w.ClientConfig.Service.Path = new("/elsewhere") }, false},
		"no path":                     {func(w *admissionregistrationv1.MutatingWebhook) { w.ClientConfig.Service.Path = nil }, false},
		"another Service":             {func(w *admissionregistrationv1.MutatingWebhook) { w.ClientConfig.Service.Name = "other" }, false},
		"a URL": {func(w *admissionregistrationv1.MutatingWebhook) {
			w.ClientConfig.Service, w.ClientConfig.URL = nil, new("https://x/pods")
		}, false},
		"another selector":           {func(w *admissionregistrationv1.MutatingWebhook) { w.ObjectSelector.MatchLabels["app"] = "db" }, false},
		"an excluded namespace less": {func(w *admissionregistrationv1.MutatingWebhook) { w.NamespaceSelector = &metav1.LabelSelector{} }, false},
		"another failure policy": {func(w *admissionregistrationv1.MutatingWebhook) {
			w.FailurePolicy = new(admissionregistrationv1.Ignore)
		}, false},
		"another timeout": {func(w *admissionregistrationv1.MutatingWebhook) { w.TimeoutSeconds = new(int32(30)) }, false},
		"no rules":        {func(w *admissionregistrationv1.MutatingWebhook) { w.Rules = nil }, false},
		"a condition": {func(w *admissionregistrationv1.MutatingWebhook) {
			w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "x", Expression: "false"}}
		}, false},
		"another name is another entry": {func(w *admissionregistrationv1.MutatingWebhook) { w.Name = "x" + w.Name }, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			i, object := widened(t, e, settings())
			l := bare()
			l[i] = object
			tc.edit(webhookOf(l, e.Name))
			if _, got := l.Holds(e, settings()); got != tc.want {
				t.Errorf("Holds = %v, want %v", got, tc.want)
			}
			_, _, present := l.Locate(e.Name)
			l, _ = settle(t, calm(l, e))
			if in, got := l.Holds(e, settings()); !got || present && in != i {
				t.Errorf("after planning it is in object %d: %v", in, got)
			}
		})
	}
}

func TestEditedEntryObjectsAreRestored(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	i, object := widened(t, e, settings())
	tests := map[string]func(c *configuration){
		"the barrier":               func(c *configuration) { c.Webhooks = c.Webhooks[:1] },
		"the bundle of the barrier": func(c *configuration) { barrierOf(c).ClientConfig.CABundle = nil },
		"the policy of the barrier": func(c *configuration) { barrierOf(c).FailurePolicy = new(admissionregistrationv1.Fail) },
		"the label":                 func(c *configuration) { delete(c.Labels, entryplan.LabelConfiguration) },
		"the value of the label":    func(c *configuration) { c.Labels[entryplan.LabelConfiguration] = "yes" },
		"the owner":                 func(c *configuration) { c.OwnerReferences = nil },
		"the owner of another life": func(c *configuration) { c.OwnerReferences[0].UID = "earlier" },
		"that nothing else is in it": func(c *configuration) {
			c.Webhooks = append(c.Webhooks, admissionregistrationv1.MutatingWebhook{Name: "a.example.com"})
		},
	}
	for name, edit := range tests {
		t.Run(name, func(t *testing.T) {
			l := bare()
			l[i] = object.DeepCopy()
			slices.SortFunc(l[i].Webhooks, func(a, b admissionregistrationv1.MutatingWebhook) int { return strings.Compare(b.Name, a.Name) })
			if !strings.HasSuffix(l[i].Webhooks[1].Name, ".barrier.sidecarset.io") {
				slices.Reverse(l[i].Webhooks)
			}
			edit(l[i])
			edited := l[i].DeepCopy()
			after, _ := settle(t, calm(l, e))
			if diff := cmp.Diff(edited, l[i]); diff != "" {
				t.Errorf("planning changed its input (-before +after):\n%s", diff)
			}
			if err := whole(after[i]); err != nil {
				t.Error(err)
			}
			if entryplan.Serial(after[i]) <= firstSerial {
				t.Errorf("serial %d was not raised", entryplan.Serial(after[i]))
			}
		})
	}
}

func barrierOf(c *configuration) *admissionregistrationv1.MutatingWebhook {
	for i := range c.Webhooks {
		if c.Webhooks[i].Name == c.Name+".barrier.sidecarset.io" {
			return &c.Webhooks[i]
		}
	}
	return nil
}

// whole says what an object that holds entries lacks.
func whole(c *configuration) error {
	barrier := barrierOf(c)
	switch {
	case barrier == nil || len(barrier.ClientConfig.CABundle) == 0 || *barrier.FailurePolicy != admissionregistrationv1.Ignore:
		return fmt.Errorf("%s has no barrier as it should be: %v", c.Name, barrier)
	case entryplan.Serial(c) <= 0:
		return fmt.Errorf("%s has no serial", c.Name)
	case !entryplan.Labelled().Matches(labelSet(c.Labels)):
		return fmt.Errorf("%s has the labels %v", c.Name, c.Labels)
	case entryplan.Owner(c) != "uid-ours" || len(c.OwnerReferences) != 1:
		return fmt.Errorf("%s belongs to %v", c.Name, c.OwnerReferences)
	}
	names := map[string]bool{}
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		if names[w.Name] {
			return fmt.Errorf("%s has %s twice", c.Name, w.Name)
		}
		names[w.Name] = true
		if w != barrier && !strings.HasSuffix(w.Name, ".pods.sidecarset.io") {
			return fmt.Errorf("%s has the foreign entry %s", c.Name, w.Name)
		}
	}
	return nil
}

type labelSet map[string]string

func (l labelSet) Has(name string) bool              { _, ok := l[name]; return ok }
func (l labelSet) Get(name string) string            { return l[name] }
func (l labelSet) Lookup(name string) (string, bool) { value, ok := l[name]; return value, ok }

func TestRemoveAllEmptiesEveryObject(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	i, object := widened(t, e, settings())
	l := bare()
	l[i] = object
	changes, _ := widen(l, []entryplan.Entry{entryOf(t, sidecarSet("db", "db"))}, settings())
	l = carryOut(l, changes)
	changes = entryplan.RemoveAll(l)
	if len(changes) != 2 || changes[0].Index != i || changes[1].Index != entryplan.Provisional {
		t.Fatalf("changes %v", changes)
	}
	for _, change := range changes {
		if len(change.Object.Webhooks) != 0 || change.Object.ResourceVersion != l[change.Index].ResourceVersion || len(entryplan.Touched(change.Object)) != 0 {
			t.Errorf("%s becomes %v", change.Object.Name, change.Object)
		}
	}
	if got := entryplan.RemoveAll(bare()); len(got) != 0 {
		t.Errorf("nothing takes %v to remove", got)
	}
	if got := entryplan.RemoveAll(entryplan.Layout{}); len(got) != 0 {
		t.Errorf("no objects take %v to remove", got)
	}
}

func TestAloneHoldsOneEntry(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	_, object := widened(t, e, settings())
	alone, ok := entryplan.Alone(object, e.Name)
	if !ok || alone.Name != object.Name || alone.ResourceVersion != object.ResourceVersion || len(alone.Webhooks) != 1 || alone.Webhooks[0].Name != e.Name {
		t.Fatalf("Alone = %v, %v", alone, ok)
	}
	alone.Webhooks[0].ObjectSelector.MatchLabels["app"] = "changed"
	if _, holds := layoutWith(t, object).Holds(e, settings()); !holds {
		t.Error("what is alone shares memory with the object")
	}
	if _, ok := entryplan.Alone(object, "other"); ok {
		t.Error("there is no entry of that name")
	}
}

func layoutWith(t testing.TB, object *configuration) *entryplan.Layout {
	t.Helper()
	i, ok := entryplan.Index(object.Name)
	if !ok {
		t.Fatalf("%s is not one of ours", object.Name)
	}
	l := bare()
	l[i] = object
	return &l
}
