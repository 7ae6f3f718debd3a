package podwebhook

import (
	"maps"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Some clouds add requirements to the selectors of every Pod webhook, again and again. What
// only leaves Pods out is kept. All other edits are undone.

// restriction says whether a selector is another one, or that one with additions that only
// leave out more, and returns the additions.
func restriction(from, to *metav1.LabelSelector) (by []metav1.LabelSelectorRequirement, ok bool) {
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
		if r.Operator != metav1.LabelSelectorOpNotIn && r.Operator != metav1.LabelSelectorOpDoesNotExist {
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

func sameRequirement(a, b metav1.LabelSelectorRequirement) bool {
	return a.Key == b.Key && a.Operator == b.Operator && slices.Equal(a.Values, b.Values)
}

func minus(values, others []string) []string {
	return slices.DeleteFunc(slices.Clone(values), func(v string) bool { return slices.Contains(others, v) })
}

// carry gives the rendering of a webhook what another program leaves out in the present one, in the
// form that the program gave it: it would restore that form.
// The rendering then shares memory with the present webhook.
func carry(present, w *admissionregistrationv1.MutatingWebhook) {
	if isRestricted(w.NamespaceSelector, present.NamespaceSelector) {
		w.NamespaceSelector = present.NamespaceSelector
	}
	if isRestricted(w.ObjectSelector, present.ObjectSelector) {
		w.ObjectSelector = present.ObjectSelector
	}
}

func isRestricted(from, to *metav1.LabelSelector) bool {
	_, ok := restriction(from, to)
	return ok
}

// exclude replaces the excluded namespaces that webhooks were written with by others. What another
// program has added to the list stays. Otherwise a namespace that is excluded no more would count
// as such an addition.
func exclude(webhooks []admissionregistrationv1.MutatingWebhook, before, now []string) {
	if len(before) == 0 || slices.Equal(before, now) {
		return
	}
	for i := range webhooks {
		selector := webhooks[i].NamespaceSelector.DeepCopy()
		if selector == nil {
			continue
		}
		webhooks[i].NamespaceSelector = selector
		for at, r := range selector.MatchExpressions {
			if r.Key == corev1.LabelMetadataName && r.Operator == metav1.LabelSelectorOpNotIn && len(minus(before, r.Values)) == 0 {
				selector.MatchExpressions[at].Values = slices.Concat(now, minus(minus(r.Values, before), now))
			}
		}
	}
}

// Restriction tells what another program has added to a webhook.
type Restriction struct {
	// By are the additions, in the form of label selectors; "" if there are none.
	By string
	// From selects the namespaces of the webhook without the additions, To those with them.
	From, To *metav1.LabelSelector
}

// Restriction returns what another program has added to a webhook.
func (s *Shard) Restriction(e *Webhook) (n Restriction) {
	at := find(s.Object, e.Name)
	if at < 0 {
		return n
	}
	w := &s.Object.Webhooks[at]
	n.From, n.To = allowed(e.NamespaceSelector, s.Excluded), w.NamespaceSelector
	namespaces, _ := restriction(n.From, n.To)
	pods, _ := restriction(orEverything(e.Selector), w.ObjectSelector)
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
