package entryplan

import (
	"iter"
	"maps"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Some clouds add requirements to the selectors of every webhook entry, again and again. What
// only leaves Pods out is carried along. All other edits are undone.

// annotationExcluded holds the excluded namespaces that the entries of an object were last
// written with. Without it, a namespace that is excluded no more would count as an addition of
// another program.
const annotationExcluded = "sidecarset.io/excluded-namespaces"

// narrowed reports whether a selector is another one, or that one with additions that only
// leave out more, and returns the additions.
func narrowed(from, to *metav1.LabelSelector) (by []metav1.LabelSelectorRequirement, ok bool) {
	if from == nil || to == nil {
		return nil, from == to
	}
	if !maps.Equal(from.MatchLabels, to.MatchLabels) {
		return nil, false
	}
	for _, ours := range from.MatchExpressions {
		if !slices.ContainsFunc(to.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
			return sameRequirement(r, ours) || ours.Operator == metav1.LabelSelectorOpNotIn && r.Operator == ours.Operator && r.Key == ours.Key && len(minus(ours.Values, r.Values)) == 0
		}) {
			return nil, false
		}
	}
	for _, r := range to.MatchExpressions {
		if slices.ContainsFunc(from.MatchExpressions, func(ours metav1.LabelSelectorRequirement) bool { return sameRequirement(r, ours) }) {
			continue
		}
		if !leavesOut(r) {
			return nil, false
		}
		for _, ours := range from.MatchExpressions {
			if ours.Key == r.Key && ours.Operator == r.Operator {
				r.Values = minus(r.Values, ours.Values)
			}
		}
		told := slices.ContainsFunc(by, func(b metav1.LabelSelectorRequirement) bool { return sameRequirement(b, r) })
		if !told && (r.Operator == metav1.LabelSelectorOpDoesNotExist || len(r.Values) > 0) {
			by = append(by, r)
		}
	}
	return by, true
}

func isNarrowed(from, to *metav1.LabelSelector) bool {
	_, ok := narrowed(from, to)
	return ok
}

func leavesOut(r metav1.LabelSelectorRequirement) bool {
	return r.Operator == metav1.LabelSelectorOpNotIn || r.Operator == metav1.LabelSelectorOpDoesNotExist
}

func minus(values, others []string) []string {
	return slices.DeleteFunc(slices.Clone(values), func(v string) bool { return slices.Contains(others, v) })
}

// carry gives a rendering the bundle of the current webhook, and what another program leaves
// out there.
func carry(current, w *admissionregistrationv1.MutatingWebhook) {
	if len(current.ClientConfig.CABundle) > 0 {
		w.ClientConfig.CABundle = current.ClientConfig.CABundle
	}
	if isNarrowed(w.NamespaceSelector, current.NamespaceSelector) {
		w.NamespaceSelector = current.NamespaceSelector.DeepCopy()
	}
	if isNarrowed(w.ObjectSelector, current.ObjectSelector) {
		w.ObjectSelector = current.ObjectSelector.DeepCopy()
	}
}

// maxAdded bounds the requirements that without takes for additions, because it tries all
// choices of them.
const maxAdded = 8

// without yields selectors without each choice of the requirements that another program may
// have added.
func without(selectors ...*metav1.LabelSelector) iter.Seq[*metav1.LabelSelector] {
	return func(yield func(*metav1.LabelSelector) bool) {
		for _, s := range selectors {
			if s == nil {
				continue
			}
			var added []int
			for i, r := range s.MatchExpressions {
				if leavesOut(r) {
					added = append(added, i)
				}
			}
			added = added[max(0, len(added)-maxAdded):]
			for choice := 1<<len(added) - 1; choice >= 0; choice-- {
				left := &metav1.LabelSelector{MatchLabels: s.MatchLabels}
				for i, r := range s.MatchExpressions {
					if at := slices.Index(added, i); at < 0 || choice&(1<<at) == 0 {
						left.MatchExpressions = append(left.MatchExpressions, r)
					}
				}
				if !yield(left) {
					return
				}
			}
		}
	}
}

// exclusion returns the last requirement that excludes the operator's namespace by name; nil if
// there is none.
func (s *Settings) exclusion(selector *metav1.LabelSelector) *metav1.LabelSelectorRequirement {
	if selector != nil {
		for i, r := range slices.Backward(selector.MatchExpressions) {
			if r.Key == corev1.LabelMetadataName && r.Operator == metav1.LabelSelectorOpNotIn && slices.Contains(r.Values, s.Namespace) {
				return &selector.MatchExpressions[i]
			}
		}
	}
	return nil
}

// shortened returns a selector without the namespaces that another program has added to our
// list, because it may have added them to a list of the user as well; nil if there are none.
func (s *Settings) shortened(selector *metav1.LabelSelector) *metav1.LabelSelector {
	excluded := s.exclusion(selector)
	if excluded == nil {
		return nil
	}
	added := minus(excluded.Values, s.ExcludedNamespaces)
	if len(added) == 0 {
		return nil
	}
	short := selector.DeepCopy()
	for i, r := range short.MatchExpressions {
		if r.Key == excluded.Key && r.Operator == excluded.Operator {
			short.MatchExpressions[i].Values = minus(r.Values, added)
		}
	}
	return short
}

// exclude writes the excluded namespaces into entries that were written with others. What
// another program has added stays.
func (p *planning) exclude() {
	ours := p.settings.excluded().Values
	for i := range MaxConfigurations {
		if len(webhooks(p.layout[i])) == 0 || p.layout[i].Annotations[annotationExcluded] == strings.Join(ours, ",") {
			continue
		}
		c := p.edit(i)
		before, known := c.Annotations[annotationExcluded]
		for at := range c.Webhooks {
			if r := p.settings.exclusion(c.Webhooks[at].NamespaceSelector); r != nil && known {
				r.Values = slices.Concat(ours, minus(minus(r.Values, strings.Split(before, ",")), ours))
			} else if r != nil {
				r.Values = ours
			}
		}
	}
}

// Narrowing tells what another program has added to an entry in an object.
type Narrowing struct {
	// By are the additions, in the form of label selectors; "" if there are none.
	By string
	// From selects the namespaces of the entry without the additions, To those with them.
	From, To *metav1.LabelSelector
}

// Narrowing returns what another program has added to an entry.
func (l *Layout) Narrowing(e Entry, s *Settings) (n Narrowing) {
	i, at, ok := l.Locate(e.Name)
	if !ok {
		return n
	}
	w := &l[i].Webhooks[at]
	n.From, n.To = s.allowed(e.NamespaceSelector), w.NamespaceSelector
	namespaces, _ := narrowed(n.From, n.To)
	pods, _ := narrowed(orEverything(e.Selector), w.ObjectSelector)
	var by []string
	if len(namespaces) > 0 {
		by = append(by, "namespaces by "+metav1.FormatLabelSelector(&metav1.LabelSelector{MatchExpressions: namespaces}))
	}
	if len(pods) > 0 {
		by = append(by, "Pods by "+metav1.FormatLabelSelector(&metav1.LabelSelector{MatchExpressions: pods}))
	}
	n.By = strings.Join(by, ", ")
	return n
}
