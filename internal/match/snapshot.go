// Package match answers which SidecarSets select a Pod. A Snapshot holds compiled
// SidecarSets and an index over them, so that the answer costs the same for one
// SidecarSet and for ten thousand. The package has no client: its callers supply
// the labels of Namespaces.
package match

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/inject"
)

// Snapshot is immutable. Any number of goroutines may read it at the same time.
type Snapshot struct {
	sidecarSets []*inject.Compiled // by name
	rules       []rule             // rules[i] is of compiled SidecarSets[i]
	namespaces  map[string]labels.Set
	history     map[string]*inject.Compiled

	// byLabel has the compiled SidecarSets with an equality requirement, by each value of one of these
	// requirements; rest has the other programs.
	byLabel map[pair][]int32
	rest    []int32
}

// pair is one label of a Pod, or the name of its namespace under the key "",
// which no label has.
type pair struct{ key, value string }

// Build makes a snapshot of compiled SidecarSets, which may come in any order; of several
// with one name the last counts. It keeps a reference to namespaces, the labels
// of the Namespaces that are known, which the caller must not change afterwards.
func Build(sidecarSets []*inject.Compiled, namespaces map[string]labels.Set) *Snapshot {
	s := &Snapshot{sidecarSets: sortedByName(sidecarSets), namespaces: namespaces}
	s.rules = make([]rule, len(s.sidecarSets))
	for i, p := range s.sidecarSets {
		s.rules[i] = newRule(p)
	}
	s.index()
	return s
}

// WithHistory returns the snapshot with the recorded revisions that SidecarSets
// inject, by name of the SidecarSet. It keeps a reference to history, which
// the caller must not change afterwards.
func (s *Snapshot) WithHistory(history map[string]*inject.Compiled) *Snapshot {
	with := *s
	with.history = history
	return &with
}

// History returns the recorded revision that a SidecarSet names for injection; nil if it
// names none, or if the snapshot lacks it.
func (s *Snapshot) History(name string) *inject.Compiled { return s.history[name] }

// Candidates returns SidecarSets of this snapshot as candidates for injection. One that refers
// to a recorded revision has that revision, if the snapshot has it, and a number from draw.
func (s *Snapshot) Candidates(sidecarSets []*inject.Compiled, draw func() float64) []inject.Candidate {
	list := make([]inject.Candidate, len(sidecarSets))
	for i, compiled := range sidecarSets {
		list[i].Current = compiled
		if _, refers := compiled.Refers(); refers {
			list[i].History, list[i].Draw = s.History(compiled.Name()), draw()
		}
	}
	return list
}

func sortedByName(sidecarSets []*inject.Compiled) []*inject.Compiled {
	sorted := slices.Clone(sidecarSets)
	byName := func(a, b *inject.Compiled) int { return strings.Compare(a.Name(), b.Name()) }
	slices.SortStableFunc(sorted, byName)
	last := sorted[:0]
	for i, p := range sorted {
		if i+1 == len(sorted) || sorted[i+1].Name() != p.Name() {
			last = append(last, p)
		}
	}
	return last
}

// SidecarSets returns all SidecarSets in name order. The slice is shared: read it only.
func (s *Snapshot) SidecarSets() []*inject.Compiled { return s.sidecarSets }

// Get returns the SidecarSet of a name.
func (s *Snapshot) Get(name string) (*inject.Compiled, bool) {
	i, found := slices.BinarySearchFunc(s.sidecarSets, name, func(p *inject.Compiled, name string) int {
		return strings.Compare(p.Name(), name)
	})
	if !found {
		return nil, false
	}
	return s.sidecarSets[i], true
}

// Has reports whether there is a SidecarSet of that name.
func (s *Snapshot) Has(name string) bool {
	_, found := s.Get(name)
	return found
}

// NamespaceLabels returns the labels of a Namespace, if this snapshot knows it.
func (s *Snapshot) NamespaceLabels(namespace string) (labels.Set, bool) {
	set, known := s.namespaces[namespace]
	return set, known
}

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

// Selection says which SidecarSets select a Pod.
type Selection struct {
	// compiled SidecarSets are those whose selectors match, in name order, paused ones included.
	SidecarSets []*inject.Compiled
	// LeftOut says that at least one more SidecarSet would select the Pod if the labels of
	// the Namespace, as they were given, allowed it.
	LeftOut bool
}

// Select finds the SidecarSets whose selectors match a Pod with these labels in
// this namespace.
//
// namespaceLabels is called at most once, and only if a SidecarSet that matches otherwise
// has requirements on other labels of the Namespace than its name. Select returns its
// error: a failed look-up is never "no match". If it is nil, the snapshot answers, and a
// Namespace that the snapshot does not know is an error.
func (s *Snapshot) Select(namespace string, podLabels labels.Set, namespaceLabels func(string) (labels.Set, error)) (Selection, error) {
	run := search{snapshot: s, namespace: namespace, pod: podLabels, ask: namespaceLabels}
	for key, value := range podLabels {
		if err := run.add(s.byLabel[pair{key, value}]); err != nil {
			return Selection{}, err
		}
	}
	if err := run.add(s.byLabel[pair{"", namespace}]); err != nil {
		return Selection{}, err
	}
	if err := run.add(s.rest); err != nil {
		return Selection{}, err
	}
	if len(run.found) == 0 {
		return Selection{LeftOut: run.leftOut}, nil
	}
	slices.Sort(run.found)                // the order of compiled SidecarSets is that of names
	run.found = slices.Compact(run.found) // a Pod that reached us unchecked may have the label ""
	matched := make([]*inject.Compiled, len(run.found))
	for i, at := range run.found {
		matched[i] = s.sidecarSets[at]
	}
	return Selection{SidecarSets: matched, LeftOut: run.leftOut}, nil
}

// search is one run of Select.
type search struct {
	snapshot  *Snapshot
	namespace string
	pod       labels.Set

	ask   func(string) (labels.Set, error)
	asked bool
	got   labels.Set

	found   []int32
	leftOut bool
}

// add checks compiled SidecarSets that the index offers and keeps those that match.
func (s *search) add(offered []int32) error {
	for _, at := range offered {
		r := &s.snapshot.rules[at]
		if !r.pod.Matches(s.pod) || !r.matchesNamespaceName(s.namespace) {
			continue
		}
		if !r.namespaceLabels.Empty() {
			if err := s.readNamespace(); err != nil {
				return err
			}
			if !r.namespaceLabels.Matches(s.got) {
				s.leftOut = true
				continue
			}
		}
		s.found = append(s.found, at)
	}
	return nil
}

func (s *search) readNamespace() (err error) {
	switch {
	case s.asked:
		return nil
	case s.ask != nil:
		s.got, err = s.ask(s.namespace)
	default:
		var known bool
		if s.got, known = s.snapshot.NamespaceLabels(s.namespace); !known {
			err = errors.New("the snapshot does not have this Namespace")
		}
	}
	if err != nil {
		return fmt.Errorf("reading the labels of Namespace %s: %w", s.namespace, err)
	}
	s.asked = true
	return nil
}
