package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/selectors"
)

// Miss is a term of a SidecarSet's selectors that the labels of a Pod or of its Namespace do not
// meet.
type Miss struct {
	// Field is spec.selector or spec.namespaceSelector.
	Field string `json:"field"`
	Label string `json:"label"`
	// Has is the value that the label has, nil if it is absent.
	Has *string `json:"has,omitempty"`
	// Unknown: the labels of the Namespace are not known.
	Unknown bool `json:"unknown,omitempty"`
	// Similar is a label that there is instead, and whose name differs in one letter.
	Similar string `json:"similar,omitempty"`
	// Operator and Values are the term as in matchExpressions.
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

const (
	fieldPods       = "spec.selector"
	fieldNamespaces = "spec.namespaceSelector"
)

// String says what there is and what the SidecarSet wants, in one sentence.
func (m Miss) String() string {
	subject, where := "the Pod", "label "+m.Label
	if m.Field == fieldNamespaces {
		subject = "the Namespace"
		if m.Label == corev1.LabelMetadataName {
			return fmt.Sprintf("namespace: the Pod is in %q, the SidecarSet %s", *m.Has, m.wants())
		}
		where = "namespace " + where
	}
	if m.Unknown {
		return fmt.Sprintf("%s: the labels of the Namespace are not known, the SidecarSet %s; add the manifest of the Namespace", where, m.wants())
	}
	if m.Similar != "" {
		return fmt.Sprintf("%s: %s does not have it, but has label %s, which is almost the same; the SidecarSet %s", where, subject, m.Similar, m.wants())
	}
	if m.Has == nil {
		return fmt.Sprintf("%s: %s does not have it, the SidecarSet %s", where, subject, m.wants())
	}
	return fmt.Sprintf("%s: %s has %q, the SidecarSet %s", where, subject, *m.Has, m.wants())
}

func (m Miss) wants() string {
	switch m.Operator {
	case "Exists":
		return "wants it with any value"
	case "DoesNotExist":
		return "wants it to be absent"
	case "NotIn":
		return "wants none of " + quoted(m.Values)
	}
	if len(m.Values) == 1 {
		return "wants " + quoted(m.Values)
	}
	return "wants one of " + quoted(m.Values)
}

// quoted joins the first of some values.
func quoted(values []string) string {
	const most = 6
	text := fmt.Sprintf("%q", values[:min(len(values), most)])
	text = strings.ReplaceAll(strings.Trim(text, "[]"), `" "`, `", "`)
	if more := len(values) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Distance is how far a SidecarSet is from selecting a Pod. The zero value is that of one that
// selects it.
type Distance struct {
	// Misses are the terms that are not met: those first whose label has another value.
	Misses []Miss
	// met is how many terms that name a value are met.
	met int
}

// Between returns the distance between the selectors of a SidecarSet, which can be used, and a
// Pod with these labels in a Namespace with these.
// known: these are all labels of the Namespace, and not its name alone.
func Between(p *inject.Program, pod, namespace labels.Set, known bool) Distance {
	var d Distance
	d.measure(fieldPods, p.Selector, pod, true)
	d.measure(fieldNamespaces, p.NamespaceSelector, namespace, known)
	slices.SortStableFunc(d.Misses, func(a, b Miss) int {
		if (a.Has == nil) == (b.Has == nil) {
			return 0
		}
		return map[bool]int{true: 1, false: -1}[a.Has == nil]
	})
	return d
}

var operators = map[selection.Operator]string{
	selection.NotIn: "NotIn", selection.NotEquals: "NotIn", selection.Exists: "Exists", selection.DoesNotExist: "DoesNotExist",
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
		m := Miss{Field: field, Label: term.Key(), Operator: cmp.Or(operators[term.Operator()], "In"), Values: slices.Sorted(slices.Values(term.ValuesUnsorted())), Unknown: unknown}
		if value, has := set[m.Label]; has {
			m.Has = &value
		} else {
			for _, name := range slices.Sorted(maps.Keys(set)) {
				if oneLetterOff(name, m.Label) {
					m.Similar = name
				}
			}
		}
		d.Misses = append(d.Misses, m)
	}
}

// oneLetterOff reports whether two names differ in one letter, which one of them may lack.
func oneLetterOff(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	same := 0
	for same < len(a) && a[same] == b[same] {
		same++
	}
	switch rest := b[same:]; {
	case rest == "" || len(b) < 3:
		return false
	case len(a) == len(b):
		return a[same+1:] == rest[1:]
	default:
		return a[same:] == rest[1:]
	}
}

// isNear reports whether it may be a mistake that the SidecarSet does not select the Pod: a term
// is met, or a label that it names has another value
// or almost the same name.
func (d *Distance) isNear() bool {
	return d.met > 0 || slices.ContainsFunc(d.Misses, func(m Miss) bool { return m.Field == fieldPods && (m.Has != nil || m.Similar != "") })
}
