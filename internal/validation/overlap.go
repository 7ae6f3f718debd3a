package validation

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Overlap reports whether some set of labels matches both selectors. A nil
// selector and one that cannot be compiled match nothing; an empty one matches
// everything.
func Overlap(a, b *metav1.LabelSelector) bool {
	wanted := make(map[string]*demand)
	return collect(a, wanted) && collect(b, wanted) && satisfiable(wanted)
}

// isNarrower reports whether a selector of namespaces selects fewer than another
// one, of all that there may ever be. One that names its namespaces is narrower
// than one that does not: names are what tenants have, and labels to leave some
// namespaces out are an administrator's.
func isNarrower(a, b *metav1.LabelSelector) bool {
	all := &metav1.LabelSelector{}
	if a == nil {
		a = all
	}
	if b == nil {
		b = all
	}
	namesOfA, namedA := namedBy(a)
	namesOfB, namedB := namedBy(b)
	if namedA != namedB {
		return namedA
	}
	if namedA && !namesOfA.Equal(namesOfB) {
		return namesOfB.IsSuperset(namesOfA)
	}
	return isWithin(a, b) && !isWithin(b, a)
}

// namedBy are the namespaces that a selector confines itself to by name, and
// whether it does.
func namedBy(selector *metav1.LabelSelector) (names sets.Set[string], named bool) {
	wanted := make(map[string]*demand)
	if !collect(selector, wanted) {
		return nil, false
	}
	d := wanted[corev1.LabelMetadataName]
	if d == nil || d.among == nil {
		return nil, false
	}
	return d.among.Difference(d.except), true
}

// isWithin reports whether every set of labels that matches a matches b. Something
// has to match a.
func isWithin(a, b *metav1.LabelSelector) bool {
	ofA, ofB := make(map[string]*demand), make(map[string]*demand)
	if !collect(a, ofA) || !collect(b, ofB) {
		return false
	}
	for key, d := range ofB {
		if !demandFor(ofA, key).isWithin(d) {
			return false
		}
	}
	return true
}

// isWithin reports whether every value that d allows, absence included, is one
// that the other allows.
func (d *demand) isWithin(other *demand) bool {
	switch {
	case d.absent:
		return !other.present
	case !d.present && other.present, other.absent:
		return false
	case d.among == nil:
		return other.among == nil && d.except.IsSuperset(other.except)
	}
	allowed := d.among.Difference(d.except)
	return (other.among == nil || other.among.IsSuperset(allowed)) && !other.except.HasAny(allowed.UnsortedList()...)
}

// demand is what selectors say about one label.
type demand struct {
	present, absent bool
	among           sets.Set[string] // nil: any value
	except          sets.Set[string]
}

func satisfiable(wanted map[string]*demand) bool {
	for _, d := range wanted {
		if !d.satisfiable() {
			return false
		}
	}
	return true
}

func (d *demand) satisfiable() bool {
	return !(d.absent && d.present) && (d.among == nil || d.among.Difference(d.except).Len() > 0)
}

// collect adds what one selector demands. It reports whether anything can match.
func collect(selector *metav1.LabelSelector, wanted map[string]*demand) bool {
	if _, err := metav1.LabelSelectorAsSelector(selector); selector == nil || err != nil {
		return false
	}
	for key, value := range selector.MatchLabels {
		demandFor(wanted, key).oneOf(value)
	}
	for _, e := range selector.MatchExpressions {
		d := demandFor(wanted, e.Key)
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			d.oneOf(e.Values...)
		case metav1.LabelSelectorOpNotIn:
			d.except.Insert(e.Values...)
		case metav1.LabelSelectorOpExists:
			d.present = true
		case metav1.LabelSelectorOpDoesNotExist:
			d.absent = true
		}
	}
	return true
}

func demandFor(wanted map[string]*demand, key string) *demand {
	if wanted[key] == nil {
		wanted[key] = &demand{except: sets.New[string]()}
	}
	return wanted[key]
}

func (d *demand) oneOf(values ...string) {
	d.present = true
	if d.among == nil {
		d.among = sets.New(values...)
		return
	}
	d.among = d.among.Intersection(sets.New(values...))
}

// unseenByReference reports whether the reference takes two selectors for
// disjoint because one asks for a label, of any value, that the other one does
// not mention with a value. Manifests that it admits must still apply, so what
// follows from such an overlap is a warning.
func unseenByReference(a, b *metav1.LabelSelector) bool {
	return a != nil && b != nil && (asksForUnmentioned(a, b) || asksForUnmentioned(b, a))
}

func asksForUnmentioned(asking, other *metav1.LabelSelector) bool {
	return slices.ContainsFunc(asking.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool {
		return e.Operator == metav1.LabelSelectorOpExists && !mentions(other, e.Key)
	})
}

func mentions(selector *metav1.LabelSelector, key string) bool {
	if _, ok := selector.MatchLabels[key]; ok {
		return true
	}
	return slices.ContainsFunc(selector.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool {
		return e.Key == key && (e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpExists)
	})
}

// saysNothing reports whether a SidecarSet's selector selects no Pod at all.
func saysNothing(selector *metav1.LabelSelector) bool {
	return selector == nil || len(selector.MatchLabels)+len(selector.MatchExpressions) == 0
}
