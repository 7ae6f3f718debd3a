package explain

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/selectors"
)

// Mismatch is a term of a SidecarSet's selectors that the labels of a Pod or of its Namespace do not
// meet.
type Mismatch struct {
	// Field is spec.selector or spec.namespaceSelector.
	Field string `json:"field"`
	// Term is the term as kubectl writes selectors, such as "team in (a,b)" or "!team".
	Term  string `json:"term"`
	Label string `json:"label"`
	// Has is the value that the label has, nil if it is absent.
	Has *string `json:"has,omitempty"`
	// Unknown: the labels of the Namespace are not known.
	Unknown bool `json:"unknown,omitempty"`
}

const (
	fieldPods       = "spec.selector"
	fieldNamespaces = "spec.namespaceSelector"
)

// String says what the SidecarSet wants and what there is.
func (m Mismatch) String() string {
	subject := "the Pod"
	if m.Field == fieldNamespaces {
		subject = "the Namespace"
	}
	switch wants := m.Field + " wants " + m.Term; {
	case m.Unknown:
		return wants + "; the labels of the Namespace are not known: add its manifest"
	case m.Has == nil:
		return fmt.Sprintf("%s; %s has no label %s", wants, subject, m.Label)
	default:
		return fmt.Sprintf("%s; %s has %s=%s", wants, subject, m.Label, *m.Has)
	}
}

// Distance is how far a SidecarSet is from selecting a Pod. The zero value is for one that
// selects it.
type Distance struct {
	// Mismatches are the terms that are not met: those first whose label has another value.
	Mismatches []Mismatch
	// met is how many terms that name a value are met.
	met int
}

// Between returns the distance between the selectors of a SidecarSet, which can be used, and a
// Pod with these labels in a Namespace with these.
// known: these are all labels of the Namespace, and not its name alone.
func Between(p *inject.Compiled, pod, namespace labels.Set, known bool) Distance {
	var d Distance
	d.measure(fieldPods, p.Selector, pod, true)
	d.measure(fieldNamespaces, p.NamespaceSelector, namespace, known)
	slices.SortStableFunc(d.Mismatches, func(a, b Mismatch) int {
		if (a.Has == nil) == (b.Has == nil) {
			return 0
		}
		return map[bool]int{true: 1, false: -1}[a.Has == nil]
	})
	return d
}

func (d *Distance) measure(field string, selector labels.Selector, set labels.Set, known bool) {
	terms, _ := selector.Requirements()
	for i := range terms {
		term := &terms[i]
		unknown := !known && term.Key() != corev1.LabelMetadataName
		if term.Matches(set) && !unknown {
			if selectors.IsEquality(term) {
				d.met++
			}
			continue
		}
		m := Mismatch{Field: field, Term: term.String(), Label: term.Key(), Unknown: unknown}
		if value, has := set[m.Label]; has {
			m.Has = &value
		}
		d.Mismatches = append(d.Mismatches, m)
	}
}

// isNear reports whether it may be a mistake that the SidecarSet does not select the Pod: a term
// is met, or a label that it names has another value.
func (d *Distance) isNear() bool {
	return d.met > 0 || slices.ContainsFunc(d.Mismatches, func(m Mismatch) bool { return m.Field == fieldPods && m.Has != nil })
}
