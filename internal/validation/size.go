package validation

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/selectors"
)

// maxSpecBytes bounds the spec of a SidecarSet as JSON, because every replica of the operator
// holds it, and up to ten recorded revisions of it. The API server stores 1.5 MiB.
const maxSpecBytes = 256 << 10

// validateSize refuses a spec that is too long. A stored one may stay as long as it is: it was
// stored before this rule existed, or without the operator's webhook, and users must be able
// to edit its other members.
func validateSize(object, replaced map[string]any, spec place) {
	if size := sizeOf(object); size > maxSpecBytes && size > sizeOf(replaced) {
		spec.forbidden(fmt.Sprintf("has %d bytes as JSON, and the limit is %d, because each replica of the operator keeps it in memory; move long values into ConfigMaps, or split the SidecarSet", size, maxSpecBytes))
	}
}

// sizeOf is the length of a spec as JSON, 0 if there is none.
func sizeOf(object map[string]any) int {
	text, _ := json.Marshal(specOf(object)) // a tree of JSON values always marshals
	return len(text)
}

// maxTerms bounds a selector. Every SidecarSet that is written is compared with the
// selectors of all others.
const maxTerms = 1000

// validateSelectorSizes refuses selectors that are too long. A stored one may stay as long as
// it is.
func validateSelectorSizes(set, old *appsv1beta1.SidecarSet, spec place) {
	for _, of := range selectorsOf {
		if n := of.terms(&set.Spec); n > maxTerms && (old == nil || n > of.terms(&old.Spec)) {
			spec.Child(of.path[0], of.path[1:]...).forbidden(fmt.Sprintf("has %d labels, expressions and values, and the limit is %d, "+
				"because each SidecarSet that is written is compared with it; give the selected objects a common label, and select by it", n, maxTerms))
		}
	}
	bytes := func(s *appsv1beta1.SidecarSet) int {
		return selectors.Bytes(s.Spec.Selector, s.Spec.NamespaceSelector)
	}
	if n := bytes(set); len(*spec.errs) == 0 && n > selectors.MaxBytes && (old == nil || n > bytes(old)) {
		longer := "selector"
		if selectors.Bytes(set.Spec.NamespaceSelector) > selectors.Bytes(set.Spec.Selector) {
			longer = "namespaceSelector"
		}
		spec.Child(longer).forbidden(fmt.Sprintf("has most of the %d bytes that selector and namespaceSelector have together, and the limit is %d, "+
			"because API servers compare each new Pod with them; give the selected objects a common label, and select by it", n, selectors.MaxBytes))
	}
}

// selectorsOf are the selectors of a SidecarSet that the operator evaluates, by their place,
// with the number of their terms. Those in one place are bounded together.
var selectorsOf = []struct {
	path  []string
	terms func(*appsv1beta1.SidecarSetSpec) int
}{
	{[]string{"selector"}, func(s *appsv1beta1.SidecarSetSpec) int { return termsOf(s.Selector) }},
	{[]string{"namespaceSelector"}, func(s *appsv1beta1.SidecarSetSpec) int { return termsOf(s.NamespaceSelector) }},
	{[]string{"updateStrategy", "selector"}, func(s *appsv1beta1.SidecarSetSpec) int { return termsOf(s.UpdateStrategy.Selector) }},
	{[]string{"updateStrategy", "priorityStrategy", "weightPriority"}, func(s *appsv1beta1.SidecarSetSpec) (n int) {
		if p := s.UpdateStrategy.PriorityStrategy; p != nil {
			for i := range p.WeightPriority {
				n += termsOf(&p.WeightPriority[i].MatchSelector)
			}
		}
		return n
	}},
}

// termsOf is the number of terms of a selector that may be absent.
func termsOf(selector *metav1.LabelSelector) int {
	if selector == nil {
		return 0
	}
	n := len(selector.MatchLabels) + len(selector.MatchExpressions)
	for i := range selector.MatchExpressions {
		n += len(selector.MatchExpressions[i].Values)
	}
	return n
}
