package entryplan_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/sidecarset/operator/internal/entryplan"
)

// provisionals are the names of the provisional entries of a layout.
func provisionals(l entryplan.Layout) []string { return l.Provisionals() }

func ownName(e entryplan.Entry) string {
	for name := range entryplan.ProvisionalNames([]entryplan.Entry{e}) {
		return name
	}
	return ""
}

// strict is an entry that a stranger would like the operator to write.
func strict(t testing.TB, i int) entryplan.Entry {
	set := annotated("sidecarset.io/timeout-seconds", "30")
	set.Name, set.Spec.Selector.MatchLabels["app"] = "ghost", fmt.Sprint("app-", i)
	return entryOf(t, set)
}

// A review proves nothing: whichever client sends it, and whatever it says, no Pod is refused
// for it, and none waits for longer than a second.
func TestAReviewAddsOnlyAProvisionalEntry(t *testing.T) {
	l := bare()
	changes, unplaced := entryplan.Widen(l, []entryplan.Entry{strict(t, 0)}, settings())
	if len(unplaced) != 0 || len(changes) != 1 || changes[0].Index != entryplan.Provisional {
		t.Fatalf("Widen = %v, %v", changes, unplaced)
	}
	l = carryOut(l, changes)
	w := webhookOf(l, ownName(strict(t, 0)))
	if w == nil || *w.FailurePolicy != admissionregistrationv1.Ignore || *w.TimeoutSeconds != 1 || *w.ClientConfig.Service.Path != "/pods/fresh" ||
		w.ObjectSelector.MatchLabels["app"] != "app-0" {
		t.Errorf("the entry is %+v", w)
	}
	if err := whole(l[entryplan.Provisional]); err != nil {
		t.Error(err)
	}
	if name := entryplan.ConfigurationName(entryplan.Provisional); name < entryplan.ConfigurationName(9) {
		t.Errorf("%s is called before the entries of stored SidecarSets", name)
	}
}

func TestReviewsHaveRoomForFewEntries(t *testing.T) {
	for room, want := range map[string]int{"": 0, "no": 0, "-1": 0, "0": 0, "3": 3, "1000": entryplan.MaxProvisional} {
		l := bare()
		l[entryplan.Provisional].Annotations[roomAnnotation] = room
		for batch := range 5 {
			var asked []entryplan.Entry
			for i := range 40 {
				asked = append(asked, strict(t, 40*batch+i))
			}
			changes, unplaced := entryplan.Widen(l, asked, settings())
			l = carryOut(l, changes)
			if got := len(provisionals(l)); got != want || batch == 0 && len(unplaced) != 40-want {
				t.Errorf("room %q: %d entries, %d have none", room, got, len(unplaced))
			}
		}
		for i := range entryplan.MaxConfigurations {
			if len(l[i].Webhooks) > 0 {
				t.Errorf("room %q: something was written to %s", room, l[i].Name)
			}
		}
	}
}

// A provisional entry stays until the entry of its SidecarSet is proven to be in force. In
// the meantime other provisional entries may take its place, up to a bound of all.
func TestStoredSidecarSetsUseNoProvisionalPlace(t *testing.T) {
	l, stored := bare(), []entryplan.Entry(nil)
	for i := range 3 * entryplan.MaxProvisionals {
		e := strict(t, i)
		changes, unplaced := entryplan.Widen(l, []entryplan.Entry{e}, settings())
		if full := i >= entryplan.MaxProvisionals; (len(unplaced) > 0) != full {
			t.Fatalf("SidecarSet %d of those that are stored: %d have no entry, want some: %v", i, len(unplaced), full)
		}
		l, stored = carryOut(l, changes), append(stored, e)
		for _, change := range entryplan.Next(calm(l, stored...), settings()).Changes {
			if change.Index != entryplan.Provisional { // the leader proves these first
				l[change.Index] = change.Object
			}
		}
	}
	if got := len(provisionals(l)); got != entryplan.MaxProvisionals {
		t.Errorf("%d provisional entries, want %d", got, entryplan.MaxProvisionals)
	}
}

// Reviews have written the object for provisional entries since the leader planned to remove
// three: they have touched one, and added one.
func TestRemovalOfProvisionalEntriesIsReplannedAfterReviews(t *testing.T) {
	l, stored := bare(), []entryplan.Entry{strict(t, 0), strict(t, 1), strict(t, 2)}
	changes, _ := entryplan.Widen(l, stored, settings())
	l = carryOut(l, changes)
	plan := entryplan.Next(calm(l, stored...), settings())
	removal := plan.Changes[len(plan.Changes)-1]
	if removal.Index != entryplan.Provisional || len(podEntryNames(removal.Object)) != 0 {
		t.Fatalf("the last change is of object %d and leaves %v", removal.Index, podEntryNames(removal.Object))
	}
	later := settings()
	later.MinSerial *= 2
	changes, _ = entryplan.Widen(l, []entryplan.Entry{strict(t, 1), strict(t, 3)}, later)
	now := carryOut(l, changes)
	now[entryplan.Provisional].ResourceVersion = "2"

	anew, left := entryplan.Anew(removal, l, now, later)
	if !left || anew.Index != entryplan.Provisional || anew.Object.ResourceVersion != "2" || entryplan.Serial(anew.Object) <= entryplan.Serial(now[entryplan.Provisional]) {
		t.Fatalf("Anew = %v, %v", anew, left)
	}
	want := []string{ownName(strict(t, 1)), ownName(strict(t, 3))}
	slices.Sort(want)
	if diff := cmp.Diff(want, podEntryNames(anew.Object)); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(now[entryplan.Provisional].Annotations["sidecarset.io/recent"], anew.Object.Annotations["sidecarset.io/recent"]); diff != "" {
		t.Errorf("the recorded names (-want +got):\n%s", diff)
	}
	now[entryplan.Provisional] = anew.Object
	if again, left := entryplan.Anew(removal, l, now, later); left {
		t.Errorf("once more: %v", again)
	}
	now[entryplan.Provisional] = nil
	if again, left := entryplan.Anew(removal, l, now, later); left {
		t.Errorf("without the object: %v", again)
	}
}

// A SidecarSet whose timeout is changed, or a second one with another policy.
func TestAReviewChangesNothingButThePathOfAnEntry(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	l, _ := settle(t, calm(bare(), e))
	before := webhookOf(l, e.Name).DeepCopy()
	other := annotated("sidecarset.io/timeout-seconds", "30")
	s := settings()
	s.MinSerial = 5000
	changes, unplaced := entryplan.Widen(l, []entryplan.Entry{entryOf(t, other)}, s)
	l = carryOut(l, changes)
	if len(unplaced) != 0 || len(changes) != 2 || changes[0].Index != entryplan.Provisional || len(provisionals(l)) != 0 || podEntries(t, l) != 1 {
		t.Fatalf("Widen = %v, %v", changes, unplaced)
	}
	after := webhookOf(l, e.Name)
	if got := *after.ClientConfig.Service.Path; got != "/pods/fresh" {
		t.Errorf("the entry is on %s", got)
	}
	before.ClientConfig.Service.Path = after.ClientConfig.Service.Path
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the entry (-before +after):\n%s", diff)
	}
	if i, ok := l.Serves(entryOf(t, other), s); !ok || entryplan.Touched(l[i])[e.Name] != 5000 {
		t.Errorf("it is served by object %d: %v", i, ok)
	}
}

func TestAProvisionalEntryGoes(t *testing.T) {
	e, ghost := strict(t, 1), strict(t, 2)
	changes, _ := entryplan.Widen(bare(), []entryplan.Entry{e, ghost}, settings())
	l := carryOut(bare(), changes)
	state := calm(l, e)
	unsettled(&state)

	t.Run("when the entry of the stored SidecarSet stands, which waits for others on their way", func(t *testing.T) {
		plan := entryplan.Next(state, settings())
		if n := len(plan.Changes); n != 2 || plan.Changes[n-1].Index != entryplan.Provisional {
			t.Fatalf("changes %v", plan.Changes)
		}
		after := carryOut(l, plan.Changes)
		if diff := cmp.Diff([]string{ownName(ghost)}, provisionals(after)); diff != "" {
			t.Errorf("provisional entries (-want +got):\n%s", diff)
		}
		i, holds := after.Holds(e, settings())
		if !holds || pathOf(after, e.Name) != "/pods/fresh" || entryplan.Touched(after[i])[e.Name] != entryplan.Serial(after[i]) {
			t.Errorf("holds: %v, on %s, touched %v", holds, pathOf(after, e.Name), entryplan.Touched(after[i]))
		}
		if again, _ := settle(t, func() entryplan.State { s := state; s.Layout = after; return s }()); pathOf(again, e.Name) != "/pods/fresh" {
			t.Errorf("it has left the fresh path for %s", pathOf(again, e.Name))
		}
	})
	t.Run("when no SidecarSet was stored in time", func(t *testing.T) {
		state := calm(l)
		state.Expired, state.Room = map[string]bool{ownName(e): true}, 7
		after, _ := settle(t, state)
		if diff := cmp.Diff([]string{ownName(ghost)}, provisionals(after)); diff != "" {
			t.Errorf("provisional entries (-want +got):\n%s", diff)
		}
		if room, _ := entryplan.RoomOf(after[entryplan.Provisional]); room != 7 {
			t.Errorf("the room is %d", room)
		}
	})
	t.Run("but not while nobody can answer for the other", func(t *testing.T) {
		state := state
		state.CanServe = false
		if after, _ := settle(t, state); len(provisionals(after)) != 2 {
			t.Errorf("provisional entries %v", provisionals(after))
		}
	})
	t.Run("when the API server does not take the other", func(t *testing.T) {
		state := state
		state.Refused = map[string]bool{e.Name: true}
		if after, _ := settle(t, state); len(provisionals(after)) != 1 {
			t.Errorf("provisional entries %v", provisionals(after))
		}
	})
	t.Run("with all others", func(t *testing.T) {
		state := calm(l)
		state.Expired = map[string]bool{ownName(e): true, ownName(ghost): true}
		if after, _ := settle(t, state); !after.Empty() {
			t.Errorf("something is left: %v", after[entryplan.Provisional])
		}
	})
}

// A process of the operator that an attacker has taken over may write anything into the objects.
func TestEntriesThatTheOperatorNeverWritesAreRemovedAtOnce(t *testing.T) {
	wanted, orphan := entryOf(t, sidecarSet("log", "web")), entryOf(t, sidecarSet("gone", "gone"))
	base, _ := settle(t, calm(bare(), wanted, orphan))
	changes, _ := entryplan.Widen(base, []entryplan.Entry{strict(t, 1)}, settings())
	base = carryOut(base, changes)
	secrets := func(w *admissionregistrationv1.MutatingWebhook) { w.Rules[0].Resources = []string{"secrets"} }
	elsewhere := func(w *admissionregistrationv1.MutatingWebhook) {
		w.ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: new("https://evil.example.com/pods"), CABundle: []byte("x")}
	}
	barrier := func(l entryplan.Layout) string {
		i, _, _ := l.Locate(wanted.Name)
		return l[i].Name + ".barrier.sidecarset.io"
	}
	tests := map[string]struct {
		entry func(entryplan.Layout) string
		edit  func(*admissionregistrationv1.MutatingWebhook)
		left  bool
	}{
		"an orphan for Secrets":                            {func(entryplan.Layout) string { return orphan.Name }, secrets, false},
		"an orphan that calls somebody else":               {func(entryplan.Layout) string { return orphan.Name }, elsewhere, false},
		"a provisional entry for Secrets":                  {func(entryplan.Layout) string { return ownName(strict(t, 1)) }, secrets, false},
		"a provisional entry that calls others":            {func(entryplan.Layout) string { return ownName(strict(t, 1)) }, elsewhere, false},
		"a provisional entry that calls another namespace": {func(entryplan.Layout) string { return ownName(strict(t, 1)) }, func(w *admissionregistrationv1.MutatingWebhook) { w.ClientConfig.Service.Namespace = "evil" }, false},
		"a provisional entry for our own namespace": {func(entryplan.Layout) string { return ownName(strict(t, 1)) }, func(w *admissionregistrationv1.MutatingWebhook) {
			w.NamespaceSelector.MatchExpressions[0].Values = []string{"kube-system"}
		}, false},
		"a provisional entry that refuses Pods": {func(entryplan.Layout) string { return ownName(strict(t, 1)) }, func(w *admissionregistrationv1.MutatingWebhook) { *w.FailurePolicy = "Fail" }, false},
		"a barrier for Secrets":                 {barrier, secrets, true},
		"an entry under another's name":         {func(entryplan.Layout) string { return orphan.Name }, func(w *admissionregistrationv1.MutatingWebhook) { w.ObjectSelector.MatchLabels["app"] = "x" }, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := clone(base)
			entry := tc.entry(l)
			tc.edit(webhookOf(l, entry))
			state := calm(l, wanted)
			unsettled(&state)
			plan := entryplan.Next(state, settings())
			if foreign := slices.Concat(slices.Collect(maps.Values(plan.Foreign))...); !slices.Equal(foreign, []string{entry}) {
				t.Errorf("foreign are %v, want %s", foreign, entry)
			}
			w := webhookOf(carryOut(l, plan.Changes), entry)
			if (w != nil) != tc.left {
				t.Fatalf("%s is %v", entry, w)
			}
			if w != nil && !slices.Equal(w.Rules[0].Resources, []string{"configmaps"}) {
				t.Errorf("%s is about %v", entry, w.Rules[0].Resources)
			}
		})
	}
	if plan := entryplan.Next(func() entryplan.State { s := calm(base, wanted); unsettled(&s); return s }(), settings()); len(plan.Foreign) != 0 {
		t.Errorf("what we have written is foreign: %v", plan.Foreign)
	}
}

// While flags are rolled out, the replica that admits a SidecarSet has other flags than the
// leader.
func TestAProvisionalEntryOfAProcessWithOtherFlagsStays(t *testing.T) {
	for name, change := range map[string]func(*entryplan.Settings){
		"more excluded namespaces": func(s *entryplan.Settings) { s.ExcludedNamespaces = append(s.ExcludedNamespaces, "monitoring") },
		"fewer":                    func(s *entryplan.Settings) { s.ExcludedNamespaces = []string{"ours"} },
		"another reinvocation":     func(s *entryplan.Settings) { s.Reinvocation = admissionregistrationv1.IfNeededReinvocationPolicy },
		"another Service":          func(s *entryplan.Settings) { s.Service.Name, s.Service.Port = "webhooks-2", new(int32(8443)) },
		"the Service, not a URL":   func(*entryplan.Settings) {},
	} {
		t.Run(name, func(t *testing.T) {
			replica, leader := settings(), settings()
			if change(replica); reflect.DeepEqual(replica, leader) {
				leader.URL = "https://127.0.0.1:9443"
			}
			e := strict(t, 1)
			changes, _ := entryplan.Widen(bare(), []entryplan.Entry{e}, replica)
			l := carryOut(bare(), changes)
			plan := entryplan.Next(calm(l), leader)
			if l = carryOut(l, plan.Changes); len(plan.Foreign) != 0 || !slices.Equal(provisionals(l), []string{ownName(e)}) {
				t.Fatalf("foreign are %v, and %v are left", plan.Foreign, provisionals(l))
			}
			if _, serves := l.Serves(e, replica); !serves {
				t.Error("the replica does not know its entry any more")
			}
			state := calm(l)
			state.Expired = map[string]bool{ownName(e): true}
			if l = carryOut(l, entryplan.Next(state, leader).Changes); len(provisionals(l)) != 0 {
				t.Errorf("after its time %v are left", provisionals(l))
			}
		})
	}
}

// The entry may be of a SidecarSet that the leader does not know yet.
func TestAnEntryOfAProcessWithOtherFlagsIsAdopted(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	earlier, leader := settings(), settings()
	earlier.ExcludedNamespaces, earlier.Service.Name = []string{"ours"}, "webhooks-2"
	l := carryOut(bare(), entryplan.Next(calm(bare(), e), earlier).Changes)
	state := calm(l)
	unsettled(&state)
	plan := entryplan.Next(state, leader)
	l = carryOut(l, plan.Changes)
	if _, holds := l.Holds(e, leader); !holds || len(plan.Foreign) != 0 {
		t.Errorf("foreign are %v, the entry is %v", plan.Foreign, webhookOf(l, e.Name))
	}
}

// A plan neither creates nor deletes objects. An administrator has to apply a deleted
// object again. Meanwhile its entries are in other objects.
func TestEntriesMoveFromAnObjectThatIsGone(t *testing.T) {
	wanted := many(t, 60)
	l, _ := settle(t, calm(bare(), wanted...))
	for gone := range entryplan.MaxConfigurations {
		l[gone] = nil
		after, overflow := settle(t, calm(l, wanted...))
		if gone < entryplan.MaxConfigurations-1 {
			if got := podEntries(t, after); got != 60 || overflow != nil {
				t.Fatalf("without %d objects there are %d entries, overflow %v", gone+1, got, overflow)
			}
		} else if plan := entryplan.Next(calm(after, wanted...), settings()); len(plan.Changes) != 0 || plan.Overflow != nil || after.Exist() {
			t.Errorf("without objects: %v", plan)
		}
		l = after
	}
	provisional := bare()[entryplan.Provisional]
	l[entryplan.Provisional] = provisional
	l[7] = bare()[7]
	after, _ := settle(t, calm(l, wanted...))
	if got := podEntries(t, after); got != 60 {
		t.Errorf("with one object that was applied again there are %d entries", got)
	}
}

// Two versions of the operator run side by side while one is rolled out.
func TestAnEntryObjectOfANewerFormatIsLeftAlone(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	l, _ := settle(t, calm(bare(), e))
	home, _, _ := l.Locate(e.Name)
	for _, newer := range []string{"2", "1000", "x", ""} {
		l := clone(l)
		l[home].Annotations[formatAnnotation] = newer
		l[home].Webhooks = append(l[home].Webhooks, admissionregistrationv1.MutatingWebhook{Name: "what.pods.sidecarset.io"})
		before := l[home].DeepCopy()
		after, _ := settle(t, calm(l, e))
		if diff := cmp.Diff(before, after[home]); diff != "" {
			t.Errorf("format %q: the object (-before +after):\n%s", newer, diff)
		}
		after[home] = nil
		if _, holds := after.Holds(e, settings()); !holds {
			t.Errorf("format %q: the entry is relied on where it cannot be read", newer)
		}
		changes, _ := entryplan.Widen(l, []entryplan.Entry{e}, settings())
		if len(changes) != 1 || changes[0].Index == home {
			t.Errorf("format %q: widening writes %v", newer, changes)
		}
	}
	for i, c := range l {
		if want := map[bool]string{true: "1"}[len(c.Webhooks) > 0]; c.Annotations[formatAnnotation] != want {
			t.Errorf("object %d says format %q", i, c.Annotations[formatAnnotation])
		}
	}
}
