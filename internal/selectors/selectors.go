// Package selectors knows what label selectors mean to each other: whether two
// overlap, and whether one can match at all. It never looks at a Pod or a
// Namespace; package match does.
package selectors

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
)

// IsEmpty reports whether a selector is absent or has no terms. As a SidecarSet's
// selector it selects no Pod, and as its namespaceSelector every Namespace.
func IsEmpty(selector *metav1.LabelSelector) bool {
	return selector == nil || len(selector.MatchLabels)+len(selector.MatchExpressions) == 0
}

// IsEquality reports whether a requirement names the values that it accepts.
func IsEquality(requirement *labels.Requirement) bool {
	switch requirement.Operator() {
	case selection.In, selection.Equals, selection.DoubleEquals:
		return true
	}
	return false
}

// Contradiction returns the first label, by its key, of which a selector demands
// what neither a value nor its absence can meet; "" if there is none. It returns
// "" for a selector that cannot be compiled.
func Contradiction(selector *metav1.LabelSelector) string {
	wanted := make(map[string]*demand)
	if !collect(selector, wanted) {
		return ""
	}
	return contradiction(wanted)
}

func contradiction(wanted map[string]*demand) (first string) {
	for key, d := range wanted {
		if !d.satisfiable() && (first == "" || key < first) {
			first = key
		}
	}
	return first
}

// Overlap reports whether some set of labels matches both selectors. A nil
// selector and one that cannot be compiled match nothing; an empty one matches
// everything.
func Overlap(a, b *metav1.LabelSelector) bool {
	if a == nil || b == nil || disjoint(a.MatchLabels, b.MatchLabels) {
		return false
	}
	wanted := make(map[string]*demand)
	return collect(a, wanted) && collect(b, wanted) && contradiction(wanted) == ""
}

// disjoint reports whether two selectors ask for different values of one label. That
// settles most pairs, and takes no memory: a new SidecarSet is compared with all others.
func disjoint(a, b map[string]string) bool {
	for key, value := range a {
		if other, ok := b[key]; ok && other != value {
			return true
		}
	}
	return false
}

// IsNarrower reports whether selector a of Namespaces selects fewer than b, of
// all Namespaces that there may ever be. A selector that names its Namespaces is
// narrower than one that does not: tenants name Namespaces, and administrators
// leave some out by labels.
func IsNarrower(a, b *metav1.LabelSelector) bool {
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

// namedBy returns the Namespaces to which a selector confines itself by name, and
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

// isWithin reports whether every set of labels that matches a matches b. At least
// one set has to match a.
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

// demand is what selectors require of one label.
type demand struct {
	present, absent bool
	among           sets.Set[string] // nil: any value
	except          sets.Set[string]
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
