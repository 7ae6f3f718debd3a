// Package selectors knows how label selectors relate to each other: whether two overlap, and
// whether one can match at all. It never looks at a Pod or a Namespace; package match does.
package selectors

import (
	"cmp"

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

// MaxBytes bounds the selectors of a SidecarSet together; see Bytes.
const MaxBytes = 16_000

// Bytes is the size of selectors as a webhook configuration has them; one may be nil.
func Bytes(selectors ...*metav1.LabelSelector) (n int) {
	for _, s := range selectors {
		if s != nil {
			n += s.Size()
		}
	}
	return n
}

// IsEquality reports whether a requirement names the values that it accepts.
func IsEquality(requirement *labels.Requirement) bool {
	switch requirement.Operator() {
	case selection.In, selection.Equals, selection.DoubleEquals:
		return true
	}
	return false
}

// Contradiction returns the key of a label for which a selector has requirements that no
// value, and not its absence either, can meet all together; "" if there is none. Of several
// keys it returns the first in alphabetical order. It returns "" for a selector that cannot be
// compiled.
func Contradiction(selector *metav1.LabelSelector) (first string) {
	for key, d := range DemandsOf(selector).byLabel {
		if !d.satisfiable() && (first == "" || key < first) {
			first = key
		}
	}
	return first
}

// Demands is what one selector requires. It is computed once for a selector that is compared
// with many. Any number of goroutines may use it at the same time.
type Demands struct {
	byLabel map[string]*demand // nil if the selector cannot be compiled
	matches bool               // some set of labels
}

// DemandsOf returns what a selector requires. A nil selector and one that cannot be
// compiled match nothing; an empty one matches everything.
func DemandsOf(selector *metav1.LabelSelector) *Demands {
	if _, err := metav1.LabelSelectorAsSelector(selector); selector == nil || err != nil {
		return &Demands{}
	}
	d := &Demands{byLabel: make(map[string]*demand, len(selector.MatchLabels)+len(selector.MatchExpressions)), matches: true}
	for key, value := range selector.MatchLabels {
		d.of(key).oneOf(value)
	}
	for _, e := range selector.MatchExpressions {
		switch of := d.of(e.Key); e.Operator {
		case metav1.LabelSelectorOpIn:
			of.oneOf(e.Values...)
		case metav1.LabelSelectorOpNotIn:
			of.except.Insert(e.Values...)
		case metav1.LabelSelectorOpExists:
			of.present = true
		case metav1.LabelSelectorOpDoesNotExist:
			of.absent = true
		}
	}
	for _, of := range d.byLabel {
		d.matches = d.matches && of.satisfiable()
	}
	return d
}

// Overlap reports whether some set of labels matches both selectors. Its cost grows with the
// length of the argument, and not with that of d. Most pairs that do not overlap require
// different values of one label. Overlap finds that first, and without allocating memory,
// because a new SidecarSet is compared with all others.
func (d *Demands) Overlap(selector *metav1.LabelSelector) bool {
	if !d.matches || selector == nil {
		return false
	}
	for key, value := range selector.MatchLabels {
		if mine := d.byLabel[key]; mine != nil && !mine.allows(value) {
			return false
		}
	}
	other := DemandsOf(selector)
	if !other.matches {
		return false
	}
	for key, theirs := range other.byLabel {
		if mine := d.byLabel[key]; mine != nil && !mine.meets(theirs) {
			return false
		}
	}
	return true
}

// HasNarrower reports whether a selector of Namespaces selects fewer Namespaces than this one,
// of all that may ever exist. A selector that names its Namespaces is narrower than one that
// does not: tenants name Namespaces, and administrators exclude some by labels. A nil selector
// selects all.
func (d *Demands) HasNarrower(selector *metav1.LabelSelector) bool {
	a, b := DemandsOf(cmp.Or(selector, &metav1.LabelSelector{})), d
	namesOfA, namedA := a.Named()
	namesOfB, namedB := b.Named()
	if namedA != namedB {
		return namedA
	}
	if namedA && !namesOfA.Equal(namesOfB) {
		return namesOfB.IsSuperset(namesOfA)
	}
	return a.isWithin(b) && !b.isWithin(a)
}

// Named returns the Namespaces to which a selector of Namespaces restricts itself by name, and
// whether it does so.
func (d *Demands) Named() (names sets.Set[string], named bool) {
	of := d.byLabel[corev1.LabelMetadataName]
	switch {
	case of == nil || of.among == nil:
		return nil, false
	case of.absent:
		return sets.New[string](), true // every Namespace has its name
	}
	return of.among.Difference(of.except), true
}

// AsksForLabel reports whether a Namespace needs some label apart from its name.
func (d *Demands) AsksForLabel() bool {
	for key, of := range d.byLabel {
		if of.present && key != corev1.LabelMetadataName {
			return true
		}
	}
	return false
}

// isWithin reports whether every set of labels that matches d matches other. At least
// one set has to match d.
func (d *Demands) isWithin(other *Demands) bool {
	if d.byLabel == nil || other.byLabel == nil {
		return false
	}
	for key, theirs := range other.byLabel {
		if !cmp.Or(d.byLabel[key], &demand{}).isWithin(theirs) {
			return false
		}
	}
	return true
}

// isWithin reports whether the other allows every value that d allows, absence included.
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

// demand is what a selector requires of one label.
type demand struct {
	present, absent bool
	among           sets.Set[string] // nil: any value
	except          sets.Set[string]
}

func (d *demand) satisfiable() bool {
	return !(d.absent && d.present) && (d.among == nil || d.among.Difference(d.except).Len() > 0)
}

// allows reports whether the label may have the value.
func (d *demand) allows(value string) bool {
	return !d.absent && (d.among == nil || d.among.Has(value)) && !d.except.Has(value)
}

// meets reports whether some value of the label, or its absence, meets both demands. Each
// demand can be met alone.
func (d *demand) meets(other *demand) bool {
	if d.absent || other.absent {
		return !d.present && !other.present
	}
	fewer := d
	if d.among == nil || other.among != nil && len(other.among) < len(d.among) {
		fewer = other
	}
	if fewer.among == nil {
		return true
	}
	for value := range fewer.among {
		if d.allows(value) && other.allows(value) {
			return true
		}
	}
	return false
}

// of returns what is required of one label so far.
func (d *Demands) of(key string) *demand {
	if d.byLabel[key] == nil {
		d.byLabel[key] = &demand{except: sets.New[string]()}
	}
	return d.byLabel[key]
}

func (d *demand) oneOf(values ...string) {
	d.present = true
	if d.among == nil {
		d.among = sets.New(values...)
		return
	}
	d.among = d.among.Intersection(sets.New(values...))
}
