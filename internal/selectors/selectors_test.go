package selectors

import (
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
)

var (
	overlapKeys   = []string{"a", "b"}
	overlapValues = []string{"x", "y", "ALL"}
)

// randomSelector returns a valid selector over few keys and values.
func randomSelector(r *rand.Rand) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if r.IntN(2) == 0 {
		s.MatchLabels = map[string]string{overlapKeys[r.IntN(2)]: overlapValues[r.IntN(3)]}
	}
	operators := []metav1.LabelSelectorOperator{
		metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
	}
	for range r.IntN(3) {
		e := metav1.LabelSelectorRequirement{Key: overlapKeys[r.IntN(2)], Operator: operators[r.IntN(4)]}
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
			e.Values = overlapValues[:1+r.IntN(3)]
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

// everyLabelSet returns all sets over the keys, with one value that no selector
// names.
func everyLabelSet() []labels.Set {
	var all []labels.Set
	values := append([]string{"", "other"}, overlapValues...)
	for _, a := range values {
		for _, b := range values {
			set := labels.Set{}
			if a != "" {
				set["a"] = a
			}
			if b != "" {
				set["b"] = b
			}
			all = append(all, set)
		}
	}
	return all
}

// Two selectors overlap exactly if one of all possible label sets matches both. One is within another
// exactly if every label set that it matches is matched by the other.
func TestSelectorsAreComparedAsASearchOverAllLabelSets(t *testing.T) {
	all := everyLabelSet()
	r := rand.New(rand.NewPCG(1, 2))
	overlapping, within := 0, 0
	for range 5000 {
		a, b := randomSelector(r), randomSelector(r)
		matchA, errA := metav1.LabelSelectorAsSelector(a)
		matchB, errB := metav1.LabelSelectorAsSelector(b)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		some, both, onlyA := false, false, false
		for _, set := range all {
			inA, inB := matchA.Matches(set), matchB.Matches(set)
			some, both, onlyA = some || inA, both || inA && inB, onlyA || inA && !inB
		}
		if got := DemandsOf(a).Overlap(b); got != both {
			t.Fatalf("Overlap(%s, %s) = %t, want %t", matchA, matchB, got, both)
		}
		if both {
			overlapping++
		}
		if !some {
			continue // matches nothing: conflicts with nothing
		}
		if got := DemandsOf(a).isWithin(DemandsOf(b)); got == onlyA {
			t.Fatalf("isWithin(%s, %s) = %t, want %t", matchA, matchB, got, !onlyA)
		}
		if !onlyA {
			within++
		}
	}
	for _, n := range []int{overlapping, within} {
		if n < 500 || n > 4500 {
			t.Errorf("of 5000 pairs, %d overlap and %d are within: the generator is one-sided", overlapping, within)
		}
	}
}

func TestOverlapOfNothing(t *testing.T) {
	some := &metav1.LabelSelector{MatchLabels: map[string]string{"a": "x"}}
	broken := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	for name, other := range map[string]*metav1.LabelSelector{"no selector (T10)": nil, "a broken one": broken} {
		if DemandsOf(some).Overlap(other) || DemandsOf(other).Overlap(some) {
			t.Errorf("%s overlaps with something", name)
		}
	}
}

func TestNarrowerNamespaces(t *testing.T) {
	named := func(names ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: names}}}
	}
	labelled := func(text string) *metav1.LabelSelector {
		selector, err := metav1.ParseToLabelSelector(text)
		if err != nil {
			t.Fatal(err)
		}
		return selector
	}
	tests := map[string]struct {
		a, b *metav1.LabelSelector
		want bool
	}{
		"one namespace, of all":                   {named("a"), nil, true},
		"all, of one namespace":                   {nil, named("a"), false},
		"all, of all":                             {nil, nil, false},
		"one name, of several":                    {named("a"), named("a", "b"), true},
		"the same name":                           {named("a"), named("a"), false},
		"other names":                             {named("a"), named("b", "c"), false},
		"one name, of a label":                    {named("a"), labelled("team=x"), true},
		"one name, of all but some":               {named("a"), labelled("control-plane notin (x)"), true},
		"a label, of one name":                    {labelled("team=x"), named("a"), false},
		"a label, of all":                         {labelled("team=x"), nil, true},
		"two labels, of one of them":              {labelled("team=x,env=prod"), labelled("team=x"), true},
		"one label, of two":                       {labelled("team=x"), labelled("team=x,env=prod"), false},
		"one label, of another":                   {labelled("team=x"), labelled("env=prod"), false},
		"the same name with a label, of the name": {&metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "a", "x": "y"}}, named("a"), true},
		"several names of which one is left out, of the rest": {labelled("kubernetes.io/metadata.name in (a,b),kubernetes.io/metadata.name notin (b)"), named("a", "b"), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			wider := tc.b
			if wider == nil {
				wider = &metav1.LabelSelector{}
			}
			if got := DemandsOf(wider).HasNarrower(tc.a); got != tc.want {
				t.Errorf("HasNarrower(%s, %s) is %v", metav1.FormatLabelSelector(tc.a), metav1.FormatLabelSelector(tc.b), got)
			}
		})
	}
}

func TestNamed(t *testing.T) {
	tests := map[string]struct {
		selector    string // name is the label with the Namespace's name
		names       string
		named, asks bool
	}{
		"nothing":           {},
		"some":              {"name in (b,a)", "a b", true, false},
		"some and not some": {"name in (a,b),name notin (b)", "a", true, false},
		"two lists":         {"name in (a,b),name in (b,c)", "b", true, false},
		"some without name": {"name in (a),!name", "", true, false},
		"all but some":      {"name notin (a)", "", false, false},
		"another label":     {"team", "", false, true},
		"no other label":    {"name,team notin (x)", "", false, false},
	}
	for what, tc := range tests {
		t.Run(what, func(t *testing.T) {
			selector, err := metav1.ParseToLabelSelector(strings.ReplaceAll(tc.selector, "name", corev1.LabelMetadataName))
			if err != nil {
				t.Fatal(err)
			}
			d := DemandsOf(selector)
			names, named := d.Named()
			if got := strings.Join(sets.List(names), " "); got != tc.names || named != tc.named || d.AsksForLabel() != tc.asks {
				t.Errorf("names %q: %v; asks for another label: %v", got, named, d.AsksForLabel())
			}
		})
	}
}
