package match

import (
	"iter"

	"k8s.io/apimachinery/pkg/labels"
)

// NamespacesWith returns the names of the Namespaces that this snapshot knows
// with labels that the selector selects, in any order.
func (s *Snapshot) NamespacesWith(selector labels.Selector) iter.Seq[string] {
	return func(yield func(string) bool) {
		for name, set := range s.namespaces {
			if selector.Matches(set) && !yield(name) {
				return
			}
		}
	}
}
