package entry_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entry"
)

// strangers is a slot to which anybody sends reviews.
type strangers struct {
	t      *testing.T
	slot   *entry.Slot
	stored func(string, entry.Need) bool
}

// review reports whether a SidecarSet got its need.
func (s *strangers) review(set *appsv1beta1.SidecarSet) bool {
	s.t.Helper()
	e := entryOf(s.t, set)
	next, refused := s.slot.Review([]entry.Entry{e}, s.stored, 0, settings())
	if (next == nil) != (refused[e.Name] != nil) {
		s.t.Fatalf("written is %v, and refused are %v", next, refused)
	}
	if next != nil {
		s.slot = stored(s.t, next)
	}
	return s.slot.Holds(e.Name, e.Needs[0])
}

func TestStrangersGetFewEntries(t *testing.T) {
	t.Parallel()
	apps := appsOf(t, 3, 200)
	known := sidecarSet("real", apps[0])
	there := entryOf(t, known)
	s := &strangers{t, holding(t, there), func(name string, n entry.Need) bool { return name == there.Name && n.Is(there.Needs[0]) }}
	got := 0
	for i, app := range apps[1:] {
		// Every other one names a SidecarSet that is stored, with selectors that the stranger made up.
		set := sidecarSet("real", app)
		if i%2 == 0 {
			set = sidecarSet(fmt.Sprint("made-up-", i), app)
		}
		if s.review(set) {
			got++
		}
	}
	if got != entry.MaxUnstored || len(s.slot.Unstored(s.stored)) != got {
		t.Errorf("%d entries of strangers, want %d", got, entry.MaxUnstored)
	}
	if known.Generation++; !s.review(known) {
		t.Error("a SidecarSet that is stored got no need")
	}
	var together []entry.Entry
	for _, app := range apps[1:20] {
		together = append(together, entryOf(t, sidecarSet("made-up", app)))
	}
	next, refused := holding(t, there).Review(together, s.stored, 2, settings())
	if got := len(stored(t, next).Entries()) - 1; got != entry.MaxUnstored-2 || got+len(refused) != len(together) {
		t.Errorf("of %d together %d got an entry, %d are refused", len(together), got, len(refused))
	}
	next, refused = bare(t, 3).Review([]entry.Entry{there}, none, entry.MaxUnstored, settings())
	if next != nil || refused[there.Name] == nil {
		t.Errorf("with as many in other slots, %v is written", next)
	}
}

func TestStrangersGetFewNeeds(t *testing.T) {
	t.Parallel()
	e := entryOf(t, sidecarSet("real", "web"))
	s := &strangers{t, holding(t, e), func(_ string, n entry.Need) bool { return n.Is(e.Needs[0]) }}
	got := 0
	for i := range 40 {
		if s.review(sidecarSet(fmt.Sprint(i, "-made-up"), "web")) {
			got++
		}
	}
	if got != 16 {
		t.Errorf("%d needs of strangers, want 16", got)
	}
	again := sidecarSet("0-made-up", "web")
	again.Generation = 9
	next := sidecarSet("real", "web")
	next.Generation = 2
	if !s.review(again) || !s.review(next) {
		t.Error("a need that is present could not be raised")
	}
	forged := sidecarSet("real", "web")
	forged.UID = uid("forged")
	if s.review(forged) || !s.slot.Holds(e.Name, entry.NeedOf(next)) { // C7
		t.Errorf("a need of another UID has changed the needs to %v", s.slot.Needs[e.Name])
	}
	if *webhookOf(s.slot, e.Name).FailurePolicy != "Fail" || *webhookOf(s.slot, e.Name).TimeoutSeconds != 5 {
		t.Errorf("strangers have changed the entry to %v", webhookOf(s.slot, e.Name))
	}
}

// Strangers fill a slot with needs of long names. Those of stored SidecarSets still have room, and
// an API server accepts the object.
func TestNeedsOfStrangersLeaveRoom(t *testing.T) {
	t.Parallel()
	long := func(i int) string { return fmt.Sprintf("%05d-%s", i, strings.Repeat("n", 247)) }
	var sets []entry.Entry
	apps := appsOf(t, 3, 41)
	for i := range 200 {
		sets = append(sets, entryOf(t, sidecarSet(long(i), apps[i%40])))
	}
	isStored := func(_ string, n entry.Need) bool { return n.Name < long(200) }
	s := &strangers{t, holding(t, sets...), isStored}
	for i := range 40 * 20 {
		set := sidecarSet(long(1000+i), "")
		set.Spec.Selector = sets[i%40].Selector
		s.review(set)
	}
	size := func() int { return len(s.slot.Object.Annotations["sidecarset.io/slot"]) }
	before := size()
	if before < 110<<10 || before > 128<<10 {
		t.Errorf("after the strangers the record has %d bytes", before)
	}
	var more []entry.Entry
	for i := range 2000 {
		e := sets[i%40]
		e.Needs = []entry.Need{{Name: long(200 + i), UID: "12345678", Generation: 1 << 40}}
		more = append(more, e)
	}
	p := s.slot.Reconcile(entry.Combine(append(more, sets...))[3], nil, keep, false, settings())
	s.slot = stored(t, p.Next)
	if grown := size() - before; grown < 48<<10 || grown > 72<<10 || len(p.Refused) == 0 || len(p.Foreign) > 0 {
		t.Errorf("the record has %d bytes after %d; refused are %d entries, foreign %v", size(), before, len(p.Refused), p.Foreign)
	}
	for _, e := range sets {
		if !s.slot.Holds(e.Name, e.Needs[0]) {
			t.Errorf("the need of %s, which was present, is gone", e.Name)
		}
	}
	late := entryOf(t, sidecarSet(long(9000), apps[40]))
	p = s.slot.Reconcile(entry.Combine(append(append(more, sets...), late))[3], nil, keep, true, settings())
	if p.Refused[late.Name] == nil || len(p.Foreign) > 0 || webhookOf(stored(t, p.Next), late.Name) != nil {
		t.Errorf("an entry whose need has no room: refused by %v, foreign are %v", p.Refused[late.Name], p.Foreign)
	}
	if next, refused := s.slot.Review([]entry.Entry{late}, all, 0, settings()); next != nil || refused[late.Name] == nil {
		t.Error("a review has added a need of a stored SidecarSet that has no room")
	}
}

// namespaces is a SidecarSet that lists this many namespaces.
func namespaces(name string, n int) *appsv1beta1.SidecarSet {
	r := in("kubernetes.io/metadata.name")
	for i := range n {
		r.Values = append(r.Values, fmt.Sprintf("%s-%050d", name, i))
	}
	set := inNamespaces(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{r}})
	set.Name, set.UID = name, uid(name)
	return set
}

func TestSlotsStayBelowWhatIsStored(t *testing.T) {
	t.Parallel()
	apps := appsOf(t, 3, 130)
	var wanted, huge []entry.Entry
	for _, app := range apps {
		wanted = append(wanted, entryOf(t, sidecarSet("set-"+app, app)))
	}
	for i := 0; len(huge) < 4; i++ {
		if e := entryOf(t, namespaces(fmt.Sprint("huge-", i), 5000)); e.Slot() == 3 { // 280 KB: two have room
			huge = append(huge, e)
		}
	}
	check := func(want []entry.Entry, places int) {
		t.Helper()
		s := &strangers{t, bare(t, 3), none}
		for i := range wanted { // of strangers, until the last moment
			s.review(sidecarSet("unstored", wanted[i].Selector.MatchLabels["app"]))
		}
		p := s.slot.Reconcile(entry.Combine(want)[3], nil, drop, false, settings())
		if len(p.Refused) != len(want)-places || len(p.Foreign) > 0 {
			t.Errorf("%d of %d have a place, want %d; foreign are %v", len(want)-len(p.Refused), len(want), places, p.Foreign)
		}
		s.slot = stored(t, p.Next)
		for _, e := range want {
			if s.slot.Says(&e, settings()) == (p.Refused[e.Name] != nil) {
				t.Errorf("%s is refused by %v, and has a place: %v", e.Name, p.Refused[e.Name], s.slot.Says(&e, settings()))
			}
		}
		// Those that have a place keep it.
		again := s.slot.Reconcile(entry.Combine(want)[3], nil, keep, false, settings())
		if again.Next != nil || len(again.Refused) != len(p.Refused) {
			t.Error("a second pass writes")
		}
	}
	check(wanted, entry.MaxEntries)
	check(huge, 2)

	some := holding(t, wanted[:entry.MaxEntries-1]...)
	next, refused := some.Review(wanted[entry.MaxEntries-1:][:1], all, 0, settings())
	if next == nil {
		t.Fatalf("the last place is refused: %v", refused)
	}
	if next, refused := stored(t, next).Review(wanted[entry.MaxEntries:][:1], all, 0, settings()); next != nil || len(refused) != 1 {
		t.Error("a review has added an entry to a slot that is full")
	}

	large := entryOf(t, namespaces("large", 300))
	if next, refused := bare(t, large.Slot()).Review([]entry.Entry{large}, none, 0, settings()); next != nil {
		t.Errorf("an entry of more than 16 KB is written, refused are %v", refused)
	}
	if next, refused := bare(t, large.Slot()).Review([]entry.Entry{large}, all, 0, settings()); next == nil {
		t.Errorf("that of a stored SidecarSet is refused: %v", refused)
	}
}
