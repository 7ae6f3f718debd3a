package entry_test

import (
	"fmt"
	"slices"
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
	apps := appsOf(t, 3, 40)
	known := sidecarSet("real", apps[0])
	there := entryOf(t, known)
	s := &strangers{t, holding(t, there), func(name string, n entry.Need) bool { return name == there.Name && n.Is(there.Needs[0]) }}
	got := 0
	for i, app := range apps[1:] {
		// Every other one names a SidecarSet that is stored, with selectors that the stranger made up.
		if s.review(sidecarSet([]string{"real", "made-up"}[i%2], app)) {
			got++
		}
	}
	if got != entry.MaxUnstored || len(s.slot.Unstored(s.stored)) != got {
		t.Errorf("%d entries of strangers, want %d", got, entry.MaxUnstored)
	}
	if known.Generation++; !s.review(known) {
		t.Error("a SidecarSet that is stored got no need")
	}
	if next, refused := bare(t, 3).Review([]entry.Entry{there}, none, entry.MaxUnstored, settings()); next != nil || refused[there.Name] == nil {
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
	again, next, forged := sidecarSet("0-made-up", "web"), sidecarSet("real", "web"), sidecarSet("real", "web")
	again.Generation, next.Generation, forged.UID = 9, 2, uid("forged")
	if !s.review(again) || !s.review(next) {
		t.Error("a need that is present could not be raised")
	}
	if s.review(forged) || !s.slot.Holds(e.Name, entry.NeedOf(next)) { // C7
		t.Errorf("a need of another UID has changed the needs to %v", s.slot.Needs[e.Name])
	}
}

// Strangers fill a slot with needs of long names. Those of stored SidecarSets still have room, and
// an API server accepts the object.
func TestNeedsOfStrangersLeaveRoom(t *testing.T) {
	t.Parallel()
	long := func(i int) string { return fmt.Sprintf("%05d-%s", i, strings.Repeat("n", 247)) }
	apps := appsOf(t, 3, 41)
	var sets []entry.Entry
	for i := range 200 {
		sets = append(sets, entryOf(t, sidecarSet(long(i), apps[i%40])))
	}
	s := &strangers{t, holding(t, sets...), func(_ string, n entry.Need) bool { return n.Name < long(200) }}
	for i := range 40 * 20 {
		s.review(sidecarSet(long(1000+i), apps[i%40]))
	}
	size := func() int { return len(s.slot.Object.Annotations["sidecarset.io/slot"]) }
	strangers := size()
	if strangers > 128<<10 {
		t.Errorf("after the strangers the record has %d bytes", strangers)
	}
	more := slices.Clone(sets)
	for i := range 2000 {
		e := sets[i%40]
		e.Needs = []entry.Need{{Name: long(200 + i), UID: "12345678", Generation: 1 << 40}}
		more = append(more, e)
	}
	late := entryOf(t, sidecarSet(long(9000), apps[40]))
	p := s.slot.Reconcile(entry.Combine(ours, append(more, late))[3], nil, false, settings())
	s.slot = stored(t, p.Next)
	if size()-strangers < 48<<10 || p.Refused[late.Name] == nil || len(p.Foreign) > 0 || webhookOf(s.slot, late.Name) != nil {
		t.Errorf("the record has %d bytes after %d; refused are %d entries, foreign %v", size(), strangers, len(p.Refused), p.Foreign)
	}
	for _, e := range sets {
		if !s.slot.Holds(e.Name, e.Needs[0]) {
			t.Errorf("the need of %s, which was present, is gone", e.Name)
		}
	}
	if next, refused := s.slot.Review([]entry.Entry{late}, all, 0, settings()); next != nil || refused[late.Name] == nil {
		t.Error("a review has added a need of a stored SidecarSet that has no room")
	}
}

// In an upgrade, all entries of a slot may leave it while as many come. An API server takes the object all the time.
func TestSidecarSetsThatMoveShareTheRoom(t *testing.T) {
	t.Parallel()
	var huge []entry.Entry
	for i := 0; len(huge) < 4; i++ {
		if name := fmt.Sprintf("%016x.pods.sidecarset.io", i); entry.SlotOf(ours, name) == 3 {
			e := entryOf(t, namespaces(fmt.Sprint("huge-", i), 5500)) // 330 KB
			e.Name = name
			huge = append(huge, e)
		}
	}
	leaving, coming := huge[:2], huge[2:]
	s := holding(t, leaving...)
	p := s.Reconcile(entry.Combine(ours, coming)[3], nil, false, settings())
	if s = stored(t, p.Next); len(p.Refused) != 1 || len(s.Entries()) != 3 {
		t.Errorf("beside two that leave, %d of two have no place", len(p.Refused))
	}
	p = s.Reconcile(entry.Combine(ours, coming)[3], s.DropAll(), false, settings())
	if s = stored(t, p.Next); len(p.Refused) != 0 || len(s.Entries()) != 2 {
		t.Errorf("after they have left, %d of two have no place, and there are %d", len(p.Refused), len(s.Entries()))
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

func TestSlotsHaveRoomForWhatIsStored(t *testing.T) {
	t.Parallel()
	apps := appsOf(t, 3, 130)
	var many, huge []entry.Entry
	for _, app := range apps {
		many = append(many, entryOf(t, sidecarSet("set-"+app, app)))
	}
	for i := 0; len(huge) < 4; i++ {
		if e := entryOf(t, namespaces(fmt.Sprint("huge-", i), 5000)); e.Slot(ours) == 3 { // 280 KB: two have room
			huge = append(huge, e)
		}
	}
	for _, tc := range []struct {
		wanted []entry.Entry
		places int
	}{{many, entry.MaxEntries}, {huge, 2}} {
		s := &strangers{t, bare(t, 3), none}
		for _, app := range apps {
			s.review(sidecarSet("unstored", app))
		}
		p := s.slot.Reconcile(entry.Combine(ours, tc.wanted)[3], s.slot.DropAll(), false, settings())
		if len(p.Refused) != len(tc.wanted)-tc.places || len(p.Foreign) > 0 {
			t.Errorf("%d of %d have no place, want %d places; foreign are %v", len(p.Refused), len(tc.wanted), tc.places, p.Foreign)
		}
		s.slot = stored(t, p.Next)
		for _, refused := range p.Refused { // it says who has the places
			for _, part := range []string{"sidecarset-pods-3", tc.wanted[0].Needs[0].Name, "Let SidecarSets share selectors"} {
				if name := tc.wanted[0].Name; p.Refused[name] == nil && len(p.Refused) < 30 && !strings.Contains(refused.Error(), part) {
					t.Errorf("the reason lacks %q: %v", part, refused)
				}
			}
			if len(refused.Error()) > 1000 {
				t.Errorf("the reason is long: %v", refused)
			}
		}
		for _, e := range tc.wanted {
			if s.slot.Has(&e, settings()) == (p.Refused[e.Name] != nil) {
				t.Errorf("%s is refused by %v, and has a place: %v", e.Name, p.Refused[e.Name], s.slot.Has(&e, settings()))
			}
			if next, _ := s.slot.Review([]entry.Entry{e}, all, 0, settings()); (next == nil) != (p.Refused[e.Name] != nil) {
				t.Errorf("a review of %s writes %v", e.Name, next)
			}
		}
		if again := s.slot.Reconcile(entry.Combine(ours, tc.wanted)[3], nil, false, settings()); again.Next != nil || len(again.Refused) != len(p.Refused) {
			t.Error("a second pass writes: those that have a place do not keep it")
		}
	}
	large := entryOf(t, namespaces("large", 300))
	for _, stored := range []bool{false, true} { // a stranger may not write more than 16 KB
		next, refused := bare(t, large.Slot(ours)).Review([]entry.Entry{large}, func(string, entry.Need) bool { return stored }, 0, settings())
		if (next != nil) != stored {
			t.Errorf("an entry of more than 16 KB that is stored: %v; refused are %v", stored, refused)
		}
	}
}
