package entryplan_test

import (
	"fmt"
	"slices"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/internal/entryplan"
)

// places is how many entries there can be besides the coarse one.
const places = entryplan.MaxConfigurations*entryplan.MaxEntries - 1

const coarseName = "all.pods.sidecarset.io"

func many(t testing.TB, n int) []entryplan.Entry {
	t.Helper()
	list := make([]entryplan.Entry, n)
	for i := range list {
		list[i] = entryOf(t, sidecarSet(fmt.Sprintf("set-%04d", i), fmt.Sprint("app-", i)))
	}
	return list
}

// podEntries counts the entries of each object, and complains about one that is
// over the bound.
func podEntries(t testing.TB, l entryplan.Layout) (total int) {
	t.Helper()
	for _, c := range l {
		if c == nil {
			continue
		}
		n := max(len(c.Webhooks)-1, 0) // the barrier
		if n > entryplan.MaxEntries {
			t.Errorf("%s holds %d entries", c.Name, n)
		}
		total += n
	}
	return total
}

func TestEntriesThatHaveNoRoomShareTheCoarseOne(t *testing.T) {
	wanted := many(t, places+3)
	full, overflow := settle(t, calm(bare(), wanted[:places]...))
	if overflow != nil || podEntries(t, full) != places {
		t.Fatalf("%d entries have no room: %v", places, overflow)
	}
	lenient := annotated("sidecarset.io/failure-policy", "Ignore")
	lenient.Name, lenient.Spec.Selector.MatchLabels["app"] = "lenient", "late"
	late := entryOf(t, lenient)

	crowded, overflow := settle(t, calm(full, append(wanted[:places:places], late)...))
	if overflow == nil || !slices.Equal(overflow.Members, []string{"lenient"}) || !overflow.Coarse {
		t.Fatalf("overflow %v, want that of lenient", overflow)
	}
	if w := webhookOf(crowded, coarseName); w == nil || *w.FailurePolicy != admissionregistrationv1.Ignore || len(w.ObjectSelector.MatchLabels) != 0 {
		t.Errorf("the coarse entry of a lenient SidecarSet is %v", w)
	}
	crowded, overflow = settle(t, calm(crowded, append(wanted, late)...))
	if overflow == nil || len(overflow.Members) != 4 || !slices.IsSorted(overflow.Members) {
		t.Fatalf("overflow %v, want that of four", overflow)
	}
	if w := webhookOf(crowded, coarseName); w == nil || *w.FailurePolicy != admissionregistrationv1.Fail {
		t.Errorf("the coarse entry of several, some strict, is %v", w)
	}
	if got := podEntries(t, crowded); got != places+1 {
		t.Errorf("%d entries in all", got)
	}

	t.Run("a member that is claimed makes it fresh", func(t *testing.T) {
		state := calm(crowded, append(wanted, late)...)
		claimed(&state)
		if l, _ := settle(t, state); pathOf(l, coarseName) != "/pods/fresh" {
			t.Errorf("it is on %s", pathOf(l, coarseName))
		}
	})
	t.Run("it stays while nobody can answer", func(t *testing.T) {
		state := calm(crowded, append(wanted, late)...)
		state.CanServe = false
		if l, _ := settle(t, state); pathOf(l, coarseName) != "/pods" {
			t.Errorf("it is on %s", pathOf(l, coarseName))
		}
	})
	t.Run("it goes when there is room for all again", func(t *testing.T) {
		// Whichever object has the room, also the one that the coarse entry is in.
		for object := range 2 {
			at := slices.IndexFunc(wanted, func(e entryplan.Entry) bool { in, _, _ := crowded.Locate(e.Name); return in == object })
			rest := slices.Delete(slices.Clone(wanted[:places+1]), at, at+1)
			l, overflow := settle(t, calm(crowded, rest...))
			if overflow != nil || pathOf(l, coarseName) != "none" {
				t.Errorf("with room in object %d: overflow %v, the coarse entry on %s", object, overflow, pathOf(l, coarseName))
			}
			if got := podEntries(t, l); got != places {
				t.Errorf("with room in object %d: %d entries", object, got)
			}
		}
	})
}

// Selectors may name thousands of namespaces, and bundles hold many CAs.
func TestObjectsStayBelowWhatIsStored(t *testing.T) {
	const most = 1_500_000 / 2
	huge := func(name string, values int) entryplan.Entry {
		set := sidecarSet(name, name)
		namespaces := metav1.LabelSelectorRequirement{Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpIn}
		for i := range values {
			namespaces.Values = append(namespaces.Values, fmt.Sprintf("%s-%050d", name, i))
		}
		set.Spec.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{namespaces}}
		return entryOf(t, set)
	}
	var wanted []entryplan.Entry
	for i := range 40 {
		wanted = append(wanted, huge(fmt.Sprint("set-", i), 5_000)) // 280 KB each: two in an object
	}
	l, overflow := settle(t, calm(bare(), wanted...))
	for _, c := range l {
		if c == nil || c.Size() > most {
			t.Fatalf("an object that is missing, or too large: %v", c.Name)
		}
	}
	if overflow == nil || len(overflow.Members) != 40-2*entryplan.MaxConfigurations {
		t.Errorf("overflow %v", overflow)
	}
	if _, unplaced := entryplan.Widen(bare(), []entryplan.Entry{huge("one", 300)}, settings()); len(unplaced) != 1 {
		t.Error("a provisional entry of more than 16 KB has room")
	}
}
