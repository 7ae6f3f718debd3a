package match

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/selectors"
)

// rule is the selectors of one SidecarSet, taken apart.
type rule struct {
	nothing bool
	pod     labels.Selector
	// namespaceNames are the requirements on the Namespace's name. The request has the
	// name, so the Namespace need not be known.
	namespaceNames []nameRule
	// namespaceLabels are the other requirements on the Namespace.
	namespaceLabels labels.Selector
	// equalities are the requirements that list the values they accept, each as its
	// alternatives: a matching Pod has at least one pair of each requirement.
	equalities [][]pair
}

// nameRule is a requirement on kubernetes.io/metadata.name, a label that every
// Namespace has.
type nameRule struct {
	in    bool // the name has to be one of names; otherwise none of them
	names []string
}

func newRule(p *inject.Compiled) rule {
	pod, selectable := p.Selector.Requirements()
	namespaces, selectableNamespace := p.NamespaceSelector.Requirements()
	if !selectable || !selectableNamespace {
		return rule{nothing: true}
	}
	r := rule{pod: p.Selector, namespaceLabels: labels.Everything()}
	for i := range pod {
		if selectors.IsEquality(&pod[i]) {
			r.addEquality(pod[i].Key(), pod[i].ValuesUnsorted())
		}
	}
	for i := range namespaces {
		if namespaces[i].Key() != corev1.LabelMetadataName {
			r.namespaceLabels = r.namespaceLabels.Add(namespaces[i])
			continue
		}
		r.addName(&namespaces[i])
	}
	return r
}

func (r *rule) addName(requirement *labels.Requirement) {
	if selectors.IsEquality(requirement) {
		names := requirement.ValuesUnsorted()
		r.namespaceNames = append(r.namespaceNames, nameRule{true, names})
		r.addEquality("", names)
		return
	}
	switch requirement.Operator() {
	case selection.NotIn, selection.NotEquals:
		r.namespaceNames = append(r.namespaceNames, nameRule{false, requirement.ValuesUnsorted()})
	case selection.DoesNotExist:
		r.nothing = true
	case selection.Exists:
	default: // a label selector of the API has no other
		r.namespaceLabels = r.namespaceLabels.Add(*requirement)
	}
}

// addEquality notes a requirement on a Pod's label, or on its namespace under
// the key "".
func (r *rule) addEquality(key string, values []string) {
	alternatives := make([]pair, len(values))
	for i, value := range values {
		alternatives[i] = pair{key, value}
	}
	r.equalities = append(r.equalities, alternatives)
}

func (r *rule) matchesNamespaceName(namespace string) bool {
	for i := range r.namespaceNames {
		if n := &r.namespaceNames[i]; slices.Contains(n.names, namespace) != n.in {
			return false
		}
	}
	return true
}

// index files every compiled SidecarSet under the equality requirement that the fewest compiled SidecarSets share,
// so that Select checks as few compiled SidecarSets as possible that do not match the Pod.
func (s *Snapshot) index() {
	uses := make(map[pair]int32, len(s.sidecarSets))
	for i := range s.rules {
		for _, alternatives := range s.rules[i].equalities {
			for _, p := range alternatives {
				uses[p]++
			}
		}
	}
	s.byLabel = make(map[pair][]int32, len(uses))
	for i := range s.rules {
		s.file(int32(i), uses)
	}
}

// file puts one compiled SidecarSet into the index.
func (s *Snapshot) file(at int32, uses map[pair]int32) {
	r := &s.rules[at]
	if r.nothing {
		return
	}
	var best []pair
	for _, alternatives := range r.equalities {
		if best == nil || busiest(alternatives, uses) < busiest(best, uses) {
			best = alternatives
		}
	}
	if best == nil {
		s.rest = append(s.rest, at)
	}
	for _, p := range best {
		s.byLabel[p] = append(s.byLabel[p], at)
	}
}

// busiest is how many compiled SidecarSets the busiest of these pairs would offer at most.
func busiest(pairs []pair, uses map[pair]int32) (most int32) {
	for _, p := range pairs {
		most = max(most, uses[p])
	}
	return most
}
